package main

import (
	"strings"

	"github.com/spf13/cobra"
)

// examples are the arguments that help and the reference show, by command; what begins
// with "$ " is a whole command line. A command may have its own in its place.
var examples = map[string][]string{
	"barrier close":         {"maintenance"},
	"barrier enter":         {"migrate --count 3", "migrate --count 3 -- /usr/lib/app/migrate"},
	"barrier leave":         {"migrate --count 3"},
	"barrier open":          {"maintenance"},
	"barrier wait":          {"maintenance --wait 5m"},
	"completion bash":       {"> /etc/bash_completion.d/zkagent"},
	"completion fish":       {"> ~/.config/fish/completions/zkagent.fish"},
	"completion powershell": {""},
	"completion zsh":        {`> "${fpath[1]}/_zkagent"`},
	"config convert":        {`site -m "give it versions"`},
	"config diff":           {"site", "site 117 118"},
	"config edit":           {`site timeouts/read -m "longer"`},
	"config export":         {"site ./site", "site > site.tar"},
	"config finish":         {"/config/site"},
	"config freeze":         {`site --reason "no changes before the sale"`},
	"config gc":             {"site --keep 5"},
	"config get":            {"site", "site timeouts/read", "site -o yaml"},
	"config history":        {"site", "site --limit 3 --patch"},
	"config import":         {`site.tar site -m "from the old cluster"`, "$ zkagent config export /config/a | zkagent config import - /config/b"},
	"config plan":           {"./site.d site", "./site.d site --rollout", "./site.d site --exit-code"},
	"config publish": {
		`./site.d site -m "longer timeout"`, "./site.d site --check-version 118", "./site.d site --rollout --canary 2 --bake 5m",
		"$ printf 30s | zkagent config publish - site --key timeouts/read",
	},
	"config rollback":  {"site", "site --to 117"},
	"config schema":    {"site", "site --schema site.schema.json"},
	"config unfreeze":  {"site"},
	"debug":            {"--file report.tar.gz"},
	"dev":              {"", "./zkagent.hcl --members web=5 --churn 5s", "./zkagent.hcl --outage 30s/5m"},
	"doctor":           {"", "-c /etc/zkagent -o json"},
	"elect":            {"nightly -- /usr/lib/app/nightly", "--observe --once nightly"},
	"events":           {"--since 1h", "--follow --template site"},
	"fmt":              {"--write /etc/zkagent", "--check --diff zkagent.hcl"},
	"hooks list":       {""},
	"hooks log":        {"compact"},
	"hooks run":        {"compact --dry-run"},
	"import":           {"consul-template /etc/consul-template.d --dir ./zkagent", "confd /etc/confd"},
	"leave":            {""},
	"maint":            {"", `on --reason "kernel upgrade" --for 2h`, "off"},
	"maint off":        {"--service web"},
	"maint on":         {`--reason "kernel upgrade" --for 2h --drain=30s`},
	"man":              {"--directory /usr/local/share/man/man1"},
	"members":          {"", "api --watch", "/services/web --state up,draining -o wide"},
	"members accept":   {"api"},
	"queue ack":        {"r-6f1c"},
	"queue len":        {"mails"},
	"queue ls":         {"mails"},
	"queue peek":       {"mails"},
	"queue purge":      {"mails --yes"},
	"queue put":        {"mails 'to: ops'", "mails --file mail.txt --priority 10"},
	"queue reserve":    {"mails -- /usr/lib/app/send", "mails --wait 10s"},
	"queue return":     {"r-6f1c"},
	"queue take":       {"mails --wait 10s"},
	"reload":           {"", "--clear-halt site"},
	"render":           {"", "site --diff --exit-code", "site --stdout --data fixture.yaml"},
	"resign":           {"nightly"},
	"rollout abort":    {`site -m "wrong branch"`},
	"rollout list":     {"site"},
	"rollout pause":    {`site -m "errors in web-03"`},
	"rollout resume":   {"site"},
	"rollout retry":    {"site"},
	"rollout undo":     {"site", "site --to 117"},
	"rollout rollback": {"site"},
	"rollout status":   {"site", "site --rollout r-0000000007"},
	"rollout watch":    {"site", "site -o ndjson"},
	"run":              {"", "-c ./zkagent.hcl --verbose"},
	"status":           {"", "-o wide", "--check"},
	"txn abort":        {"move-42"},
	"txn coordinate":   {"move-42"},
	"txn propose":      {"move-42 --sites a,b --deadline 2m"},
	"txn remove":       {"move-42"},
	"txn result":       {"move-42"},
	"txn vote":         {"move-42 --site a --on-abort ./undo -- ./prepare"},
	"txn wait":         {"move-42"},
	"upgrade":          {""},
	"validate":         {"", "--strict ./zkagent.hcl"},
	"version":          {"-o json"},
	"watch":            {"/config/site/ready", "/services/web --children", "api -- ./on-change", "/config --recursive -o ndjson"},
	"zk acl":           {"/config"},
	"zk export":        {"/config > config.ndjson"},
	"zk get":           {"/config/site/ready"},
	"zk ls":            {"/services"},
	"zk stat":          {"/config/site/ready"},
	"zk tree":          {"/services", "/config --depth 2 --data"},
}

// addExamples gives the commands below root their examples.
func addExamples(c *cobra.Command) {
	for _, args := range examples[strings.TrimPrefix(c.CommandPath(), "zkagent ")] {
		line, whole := strings.CutPrefix(args, "$ ")
		if !whole {
			line = strings.TrimSpace(c.CommandPath() + " " + args)
		}
		c.Example = strings.TrimPrefix(c.Example+"\n  "+line, "\n")
	}
	for _, sub := range c.Commands() {
		addExamples(sub)
	}
}
