#!/bin/sh
set -e
# Only at a removal, not at an upgrade (deb: "remove"; rpm: 0 packages left).
case "$1" in
remove | 0)
  if [ -d /run/systemd/system ]; then
    systemctl --no-reload disable zkagent.service || true
    systemctl stop zkagent.service || true
  fi
  ;;
esac
