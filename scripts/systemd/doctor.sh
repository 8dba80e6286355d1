# What "zkagent doctor" and "zkagent debug" find beside the real unit. Sourced
# by scripts/systemd/run.
# shellcheck shell=bash
doctor() { as_agent zkagent doctor -o json >"$WORK/doctor.json" 2>"$WORK/doctor.txt"; }
# finds LEVEL CHECK ABOUT: whether the last doctor found that.
finds() {
  python3 - "$WORK/doctor.json" "$@" <<'PY'
import json, sys
file, level, check, about = sys.argv[1:]
found = [f for f in json.load(open(file))["findings"] if f["check"] == check and about in f.get("about", "")]
sys.exit(0 if any(f["level"] == level for f in found) else 1)
PY
}
found() { finds "$@" || fail "the doctor does not say $*: $(cat "$WORK/doctor.json" "$WORK/doctor.txt")"; }
