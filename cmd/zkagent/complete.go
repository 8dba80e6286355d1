package main

import (
	"cmp"
	"context"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/election"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/settings"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/registry"
	"github.com/zkagent/zkagent/session"
)

// completeTime bounds how long a completion from the settings may take, and
// completeHosts one that asks ZooKeeper.
const (
	completeTime  = time.Second
	completeHosts = 2 * time.Second
)

// namedArgs maps commands to what their first argument names in the settings. A
// NAME|PATH in the synopsis of a command is a config, and a NAME or PATH of other
// commands a znode.
var namedArgs = map[string]func(*agent.Config) []string{
	"members": groupNames, "members accept": groupNames, "watch": groupNames, "haproxy": groupNames, "resign": electionNames, "elect": electionNames,
	"render": bundleNames, "blame": bundleNames, "explain": bundleNames, "history": bundleNames, "hooks run": hookNames, "hooks log": hookNames,
}

// takesKey are the commands whose argument after a config is one of its keys.
var takesKey = []string{"config get", "config edit"}

var flagNames = map[[2]string]func(*agent.Config) []string{
	{"maint on", "service"}: serviceNames, {"maint off", "service"}: serviceNames, {"reload", "clear-halt"}: bundleNames,
	{"events", "template"}: bundleNames, {"exec", "prefix"}: configNames, {"config publish", "gate"}: groupNames,
}

// flagValues has the complete value lists of flags, by command and flag; "" means
// every command.
var flagValues = map[[2]string][]string{
	{"", "output"}: term.Formats, {"", "color"}: {"auto", "always", "never"},
	{"members", "state"}: {"up", "draining", "maintenance", "down", "held"},
	{"elect", "dialect"}: {"curator", "curator-selector", "kazoo"}, {"lock", "dialect"}: {"curator", "kazoo"},
	{"config publish", "layout"}: {"auto", "flat", "versioned"}, {"config publish", "absent"}: {"abort", "skip"},
	{"dev", "hooks"}: {"run", "print"},
}

func completeNames(g *globals, root *cobra.Command) {
	completeArgs(g, root)
	for at, names := range flagNames {
		must(find(root, at[0]).RegisterFlagCompletionFunc(at[1], func(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
			return completed(g, names, begun)
		}))
	}
	for at, list := range flagValues {
		must(find(root, at[0]).RegisterFlagCompletionFunc(at[1], cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp)))
	}
	find(root, "fleet forget").ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return asked(g, func(ctx context.Context, s *session.Session, _ *agent.Config) ([]string, error) {
			hosts, err := fleet.Agents(ctx, s)
			hosts = slices.DeleteFunc(hosts, func(h fleet.HostStatus) bool { return !show.Gone(h.Health) })
			return lists.Map(hosts, func(h fleet.HostStatus) string { return h.ID }), err
		}), cobra.ShellCompDirectiveNoFileComp
	}
}

func completeArgs(g *globals, c *cobra.Command) {
	for _, sub := range c.Commands() {
		completeArgs(g, sub)
	}
	path := strings.TrimPrefix(c.CommandPath(), "zkagent ")
	words := strings.Fields(strings.ReplaceAll(c.Use, " [flags]", ""))[1:]
	at, names := 0, namedArgs[path]
	if names == nil {
		at = slices.IndexFunc(words, func(w string) bool { return argName.MatchString(w) })
		if at < 0 {
			return
		}
		if strings.Contains(words[at], "NAME|PATH") {
			names = configNames
		}
	}
	many := strings.HasSuffix(words[at], "...")
	c.ValidArgsFunction = func(_ *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		switch {
		case len(args) == at+1 && slices.Contains(takesKey, path):
			return keysOf(g, args[at]), cobra.ShellCompDirectiveNoFileComp
		case len(args) == at || len(args) > at && many:
			return completed(g, names, begun)
		}
		return nil, cobra.ShellCompDirectiveDefault
	}
}

// argName is an argument that names a config or a znode.
var argName = regexp.MustCompile(`^\[?(NAME|PATH|NAME\|PATH)\]?(\.\.\.)?$`)

// completed completes a name of the settings or the path of a znode.
func completed(g *globals, names func(*agent.Config) []string, begun string) ([]string, cobra.ShellCompDirective) {
	if names == nil || strings.HasPrefix(begun, "/") {
		return znodes(g, begun)
	}
	return knownNames(g, names), cobra.ShellCompDirectiveNoFileComp
}

// must panics at an error in what is ours, as a table that names an unknown command.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// asked lists what ZooKeeper knows, silently and in bounded time.
func asked(g *globals, list func(context.Context, *session.Session, *agent.Config) ([]string, error)) []string {
	g.Err, g.timeout = io.Discard, completeHosts
	var found []string
	_ = g.withSession(context.Background(), func(ctx context.Context, s *session.Session, conf *agent.Config) error {
		var err error
		found, err = list(ctx, s, conf)
		return err
	})
	return found
}

const completedMost = 1000

func znodes(g *globals, begun string) ([]string, cobra.ShellCompDirective) {
	dir := begun[:strings.LastIndex("/"+begun, "/")]
	list := asked(g, func(ctx context.Context, s *session.Session, _ *agent.Config) ([]string, error) {
		names, _, err := s.Children(ctx, cmp.Or(strings.TrimSuffix(dir, "/"), "/"))
		slices.Sort(names)
		return names[:min(len(names), completedMost)], err
	})
	for i, name := range list {
		list[i] = cmp.Or(dir, "/") + name
	}
	return list, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

func keysOf(g *globals, name string) []string {
	return asked(g, func(ctx context.Context, s *session.Session, conf *agent.Config) ([]string, error) {
		t, err := targetOf(conf, name)
		if err != nil {
			return nil, err
		}
		keys, _, err := keysInUse(ctx, s, t)
		names := slices.Sorted(maps.Keys(keys))
		return names[:min(len(names), completedMost)], err
	})
}

// find returns the command of a path such as "config get".
func find(root *cobra.Command, path string) *cobra.Command {
	c := root
	for word := range strings.FieldsSeq(path) {
		i := slices.IndexFunc(c.Commands(), func(sub *cobra.Command) bool { return sub.Name() == word })
		if i < 0 {
			return nil
		}
		c = c.Commands()[i]
	}
	return c
}

// knownNames lists names from the settings, silently and in bounded time.
func knownNames(g *globals, names func(*agent.Config) []string) []string {
	g.Err = io.Discard
	found := make(chan []string, 2) // size 2: the loader may come late
	late := time.AfterFunc(completeTime, func() { found <- nil })
	defer late.Stop()
	go func() {
		s, _ := settings.Load(g.configPaths(), settings.Options{Offline: true}) // an error leaves what could be read
		found <- names(&s.Config)
	}()
	return <-found
}

// The names of the blocks of the settings.
var (
	configNames = func(c *agent.Config) []string {
		return lists.Map(c.Configs, func(v config.Config) string { return v.Name })
	}
	groupNames = func(c *agent.Config) []string {
		return lists.Map(c.Groups, func(v registry.GroupConfig) string { return v.Name })
	}
	electionNames = func(c *agent.Config) []string {
		return lists.Map(c.Elections, func(v election.Config) string { return v.Name })
	}
	bundleNames = func(c *agent.Config) []string {
		return lists.Map(c.Bundles, func(v apply.Config) string { return v.Name })
	}
	hookNames = func(c *agent.Config) []string {
		return lists.Map(c.Hooks, func(v hook.Config) string { return v.Name })
	}
	serviceNames = func(c *agent.Config) []string {
		return lists.Map(c.Services, func(v registry.ServiceConfig) string { return v.Name })
	}
)

// examples are the arguments that help and the reference show, by command; what begins
// with "$ " is a whole command line. A command may have its own in its place.
var examples = map[string][]string{
	"barrier close":         {"maintenance"},
	"barrier enter":         {"migrate --count 3", "migrate --count 3 -- /usr/lib/app/migrate"},
	"barrier leave":         {"migrate --count 3"},
	"barrier open":          {"maintenance"},
	"barrier wait":          {"maintenance --wait 5m"},
	"blame":                 {"/etc/nginx/conf.d/upstreams.conf -L 10,20", "upstreams --missing 10.0.0.9"},
	"completion bash":       {"> /etc/bash_completion.d/zkagent"},
	"completion fish":       {"> ~/.config/fish/completions/zkagent.fish"},
	"completion powershell": {""},
	"completion zsh":        {`> "${fpath[1]}/_zkagent"`},
	"config convert":        {`site -m "versioned from now on"`},
	"config diff":           {"site", "site 117 118"},
	"config edit":           {`site timeouts/read -m "longer"`},
	"config export":         {"site ./site", "site > site.tar"},
	"config finish":         {"/config/site"},
	"config freeze":         {`site --reason "no changes before the sale"`},
	"config gc":             {"site --keep 5"},
	"config get":            {"site", "site timeouts/read", "site -o yaml"},
	"config history":        {"site", "site --limit 3 --patch"},
	"config import":         {`site.tar site -m "from the old cluster"`, "$ zkagent config export /config/a | zkagent config import - /config/b"},
	"config list":           {"", "/config"},
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
	"explain":          {"/etc/nginx/conf.d/upstreams.conf --diff 2", "/etc/nginx/conf.d/upstreams.conf web-07"},
	"fleet":            {"", "--watch", "site", "--services web", "forget web-07"},
	"fmt":              {"--write /etc/zkagent", "--check --diff zkagent.hcl"},
	"haproxy":          {"--socket /run/haproxy/admin.sock --backend web web", "--socket /run/haproxy/admin.sock --backend web --once /services/web"},
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
	"rollout rollback": {"site"},
	"rollout status":   {"site", "site --rollout r-0000000007"},
	"rollout undo":     {"site", "site --to 117"},
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
	"zk acl set":       {"/config world:anyone:r auth::cdrwa", "/config world:anyone:r auth::cdrwa --recursive"},
	"zk export":        {"/config > config.ndjson"},
	"zk get":           {"/config/site/ready"},
	"zk ls":            {"/services"},
	"zk stat":          {"/config/site/ready"},
	"zk tree":          {"/services", "/config --depth 2 --data"},
}

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
