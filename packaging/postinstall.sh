#!/bin/sh
set -e
if command -v systemd-sysusers >/dev/null; then systemd-sysusers zkagent.conf; fi
if command -v systemd-tmpfiles >/dev/null; then systemd-tmpfiles --create zkagent.conf || true; fi
chgrp zkagent /etc/zkagent/zkagent.hcl 2>/dev/null || true
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  # An upgrade hands the session over: no member blinks. Nothing is started at the first install.
  systemctl try-restart zkagent.service || true
fi
