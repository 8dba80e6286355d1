package main

import (
	"strings"

	"github.com/spf13/cobra"
)

// examples are the command lines that help and the reference show, by command.
// A command may have its own in its place.
var examples = map[string]string{
	"barrier close": `zkagent barrier close maintenance`,
	"barrier enter": `
zkagent barrier enter migrate --count 3
zkagent barrier enter migrate --count 3 -- /usr/lib/app/migrate`,
	"barrier leave":         `zkagent barrier leave migrate --count 3`,
	"barrier open":          `zkagent barrier open maintenance`,
	"barrier wait":          `zkagent barrier wait maintenance --wait 5m`,
	"completion bash":       `zkagent completion bash > /etc/bash_completion.d/zkagent`,
	"completion fish":       `zkagent completion fish > ~/.config/fish/completions/zkagent.fish`,
	"completion powershell": `zkagent completion powershell`,
	"completion zsh":        `zkagent completion zsh > "${fpath[1]}/_zkagent"`,
	"config convert":        `zkagent config convert site -m "give it versions"`,
	"config diff": `
zkagent config diff site
zkagent config diff site 117 118`,
	"config edit": `zkagent config edit site timeouts/read -m "longer"`,
	"config export": `
zkagent config export site ./site
zkagent config export site > site.tar`,
	"config finish": `zkagent config finish /config/site`,
	"config freeze": `zkagent config freeze site --reason "no changes before the sale"`,
	"config gc":     `zkagent config gc site --keep 5`,
	"config get": `
zkagent config get site
zkagent config get site timeouts/read
zkagent config get site -o yaml`,
	"config history": `
zkagent config history site
zkagent config history site --limit 3 --patch`,
	"config import": `
zkagent config import site.tar site -m "from the old cluster"
zkagent config export /config/a | zkagent config import - /config/b`,
	"config plan": `
zkagent config plan ./site.d site
zkagent config plan ./site.d site --rollout
zkagent config plan ./site.d site --exit-code`,
	"config publish": `
zkagent config publish ./site.d site -m "longer timeout"
zkagent config publish ./site.d site --check-version 118
zkagent config publish ./site.d site --rollout --canary 2 --bake 5m
printf 30s | zkagent config publish - site --key timeouts/read`,
	"config rollback": `
zkagent config rollback site
zkagent config rollback site --to 117`,
	"config schema": `
zkagent config schema site
zkagent config schema site --schema site.schema.json`,
	"config unfreeze": `zkagent config unfreeze site`,
	"debug":           `zkagent debug --file report.tar.gz`,
	"dev": `
zkagent dev
zkagent dev ./zkagent.hcl --members web=5 --churn 5s
zkagent dev ./zkagent.hcl --outage 30s/5m`,
	"doctor": `
zkagent doctor
zkagent doctor -c /etc/zkagent -o json`,
	"elect": `
zkagent elect nightly -- /usr/lib/app/nightly
zkagent elect --observe --once nightly`,
	"events": `
zkagent events --since 1h
zkagent events --follow --template site`,
	"fmt": `
zkagent fmt --write /etc/zkagent
zkagent fmt --check --diff zkagent.hcl`,
	"hooks list": `zkagent hooks list`,
	"hooks log":  `zkagent hooks log compact`,
	"hooks run":  `zkagent hooks run compact --dry-run`,
	"import": `
zkagent import consul-template /etc/consul-template.d --dir ./zkagent
zkagent import confd /etc/confd`,
	"leave": `zkagent leave`,
	"maint": `
zkagent maint
zkagent maint on --reason "kernel upgrade" --for 2h
zkagent maint off`,
	"maint off": `zkagent maint off --service web`,
	"maint on":  `zkagent maint on --reason "kernel upgrade" --for 2h --drain=30s`,
	"man":       `zkagent man --directory /usr/local/share/man/man1`,
	"members": `
zkagent members
zkagent members api --watch
zkagent members /services/web --state up,draining -o wide`,
	"members accept":   `zkagent members accept api`,
	"queue ack":        `zkagent queue ack r-6f1c`,
	"queue len":        `zkagent queue len mails`,
	"queue ls":         `zkagent queue ls mails`,
	"queue peek":       `zkagent queue peek mails`,
	"queue purge":      `zkagent queue purge mails --yes`,
	"queue put":        "\nzkagent queue put mails 'to: ops'\nzkagent queue put mails --file mail.txt --priority 10",
	"queue reserve":    "\nzkagent queue reserve mails -- /usr/lib/app/send\nzkagent queue reserve mails --wait 10s",
	"queue return":     `zkagent queue return r-6f1c`,
	"queue take":       `zkagent queue take mails --wait 10s`,
	"reload":           "\nzkagent reload\nzkagent reload --clear-halt site",
	"render":           "\nzkagent render\nzkagent render site --diff --exit-code\nzkagent render site --stdout --data fixture.yaml",
	"resign":           `zkagent resign nightly`,
	"rollout abort":    `zkagent rollout abort site -m "wrong branch"`,
	"rollout list":     `zkagent rollout list site`,
	"rollout pause":    `zkagent rollout pause site -m "errors in web-03"`,
	"rollout resume":   `zkagent rollout resume site`,
	"rollout retry":    `zkagent rollout retry site`,
	"rollout rollback": "\nzkagent rollout rollback site\nzkagent rollout rollback site --to 117",
	"rollout status":   "\nzkagent rollout status site\nzkagent rollout status site --rollout r-0000000007",
	"rollout watch":    "\nzkagent rollout watch site\nzkagent rollout watch site -o ndjson",
	"run":              "\nzkagent run\nzkagent run -c ./zkagent.hcl --verbose",
	"status": `
zkagent status
zkagent status -o wide
zkagent status --check`,
	"txn abort":      `zkagent txn abort move-42`,
	"txn coordinate": `zkagent txn coordinate move-42`,
	"txn propose":    `zkagent txn propose move-42 --sites a,b --deadline 2m`,
	"txn remove":     `zkagent txn remove move-42`,
	"txn result":     `zkagent txn result move-42`,
	"txn vote":       `zkagent txn vote move-42 --site a --on-abort ./undo -- ./prepare`,
	"txn wait":       `zkagent txn wait move-42`,
	"upgrade":        `zkagent upgrade`,
	"validate": `
zkagent validate
zkagent validate --strict ./zkagent.hcl`,
	"version": `zkagent version -o json`,
	"watch": `
zkagent watch /config/site/ready
zkagent watch /services/web --children
zkagent watch api -- ./on-change
zkagent watch /config --recursive -o ndjson`,
	"zk acl":    `zkagent zk acl /config`,
	"zk export": `zkagent zk export /config > config.ndjson`,
	"zk get":    `zkagent zk get /config/site/ready`,
	"zk ls":     `zkagent zk ls /services`,
	"zk stat":   `zkagent zk stat /config/site/ready`,
	"zk tree":   "\nzkagent zk tree /services\nzkagent zk tree /config --depth 2 --data",
}

func addExamples(c *cobra.Command) {
	if text, ok := examples[strings.TrimPrefix(c.CommandPath(), "zkagent ")]; ok {
		c.Example = "  " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ")
	}
	for _, sub := range c.Commands() {
		addExamples(sub)
	}
}
