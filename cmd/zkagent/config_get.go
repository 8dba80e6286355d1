package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/config"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/condition"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/show"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
	"github.com/zkagent/zkagent/view"
)

// versionFlag is a version number, with or without the "v" that we print.
type versionFlag int64

func (v *versionFlag) String() string {
	if *v == 0 {
		return ""
	}
	return "v" + strconv.FormatInt(int64(*v), 10)
}

func (v *versionFlag) Set(text string) error {
	n, err := parseVersion(text)
	*v = versionFlag(n)
	return err
}

// Type names the value in the help.
func (v *versionFlag) Type() string { return "version" }

func parseVersion(text string) (int64, error) {
	n, err := strconv.ParseInt(strings.TrimPrefix(text, "v"), 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a version, such as v12", text)
	}
	return n, nil
}

// readTree reads a version, or with 0 the tree in use.
func readTree(ctx context.Context, s *session.Session, t target, version int64) (*view.Tree, error) {
	switch {
	case version > 0:
		return config.ReadVersion(ctx, s, t.path, version)
	case t.layout == config.LayoutPlain:
		return config.ReadPlain(ctx, s, t.path)
	}
	return config.Read(ctx, s, t.path)
}

// keysInUse is the tree in use as a map, which is empty without one.
func keysInUse(ctx context.Context, s *session.Session, t target) (map[string][]byte, *view.Tree, error) {
	tree, err := readTree(ctx, s, t, 0)
	if errors.Is(err, config.ErrNotReady) && !errors.Is(err, fleet.ErrUnfinished) {
		return map[string][]byte{}, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	return valuesOf(tree), tree, nil
}

func valuesOf(tree *view.Tree) map[string][]byte {
	keys := map[string][]byte{}
	for path, k := range tree.Keys().All() {
		keys[path] = k.Value
	}
	return keys
}

func newConfigGetCommand(g *globals) *cobra.Command {
	var version versionFlag
	var plain, keysOnly bool
	c := configCommand(g, "get NAME|PATH [KEY]", "Print one key of a config, or all of them", func(ctx context.Context, s *session.Session, t target, args []string) error {
		if plain {
			t.layout = config.LayoutPlain
		}
		if version == 0 && t.layout != config.LayoutPlain {
			if open, err := fleet.Opened(ctx, s, t.path); err == nil { // what cannot be read says so below
				sayBrings(&g.Console, t.name+": ", open)
			}
		}
		if len(args) == 2 {
			key := strings.TrimPrefix(args[1], "/")
			err := printKey(ctx, &g.Console, s, t, int64(version), key)
			if errors.Is(err, config.ErrNoKey) {
				tree, unread := readTree(ctx, s, t, int64(version))
				if unread != nil {
					return err
				}
				return fail(exitFailed, err, t.name+" has "+listed(key, slices.Collect(maps.Keys(valuesOf(tree)))))
			}
			return err
		}
		tree, err := readTree(ctx, s, t, int64(version))
		if err != nil {
			return err
		}
		return printTree(&g.Console, tree, keysOnly)
	})
	c.Args = cobra.RangeArgs(1, 2)
	rawFlag(g, c)
	c.Flags().Var(&version, "version", "print this older version (default: the one in use)")
	c.Flags().BoolVar(&plain, "plain", false, "read the tree even without a ready znode; by default that is an error")
	c.Flags().BoolVar(&keysOnly, "keys", false, "print only the names of the keys")
	return c
}

func printKey(ctx context.Context, console *term.Console, s *session.Session, t target, version int64, key string) error {
	var value []byte
	if version == 0 && t.layout != config.LayoutPlain {
		var err error
		if value, _, err = config.Lookup(ctx, s, t.path, key); err != nil {
			return err
		}
	} else {
		tree, err := readTree(ctx, s, t, version)
		if err != nil {
			return err
		}
		k, ok := tree.Get(key)
		if !ok {
			return fmt.Errorf("config %s: %s: %w", t.path, key, config.ErrNoKey)
		}
		value = k.Value
	}
	if console.IsJSON() {
		return console.PrintJSON("value", string(value))
	}
	return console.Data(value)
}

func printTree(console *term.Console, tree *view.Tree, keysOnly bool) error {
	type pair struct {
		Key   string  `json:"key"`
		Value *string `json:"value,omitempty"` // nil with --keys
	}
	var list []pair
	for path, k := range tree.Keys().All() {
		list = append(list, pair{Key: path})
		if !keysOnly {
			list[len(list)-1].Value = new(string(k.Value))
		}
	}
	if console.IsJSON() {
		return term.PrintList(console, "keys", list)
	}
	for _, p := range list {
		line := p.Key
		if p.Value != nil {
			line += " = " + strings.TrimSuffix(*p.Value, "\n")
		}
		_ = console.Data([]byte(line + "\n"))
	}
	return nil
}

func newConfigDiffCommand(g *globals) *cobra.Command {
	var exitCode bool
	c := &cobra.Command{
		Use: "diff NAME|PATH [A [B]]", Short: "Show the difference between two versions",
		Long: `Show the differences between version A (default: the one before) and B (default:
the one in use). A or B may be a directory or file.`,
		Args: cobra.RangeArgs(1, 3),
		RunE: func(c *cobra.Command, args []string) error {
			differs := false
			err := withConfig(c.Context(), g, args[0], func(ctx context.Context, s *session.Session, t target) error {
				changes, from, to, err := diffOf(ctx, s, t, args[1:])
				if err != nil {
					return err
				}
				differs = len(changes) > 0
				if !g.IsJSON() {
					return g.PrintDiff(config.Unified(changes, from, to))
				}
				list := lists.Map(changes, func(c config.Change) changeJSON { return changeJSON{c, c.Unified(from, to)} })
				return term.PrintList(&g.Console, "changes", list)
			})
			return withExitCode(err, exitCode, differs)
		},
	}
	c.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 1 when there is a difference, and with 70 for a failure; by default a difference exits with 0")
	return c
}

type changeJSON struct {
	config.Change
	Diff string `json:"diff"`
}

func diffOf(ctx context.Context, s *session.Session, t target, args []string) ([]config.Change, string, string, error) {
	now, err := readTree(ctx, s, t, 0)
	if err != nil {
		return nil, "", "", err
	}
	sides := []string{"", ""}
	if copy(sides, args) == 0 {
		r, _, err := trees.ReadReady(ctx, s, t.path)
		if err != nil {
			return nil, "", "", err
		}
		if r.Previous == 0 {
			return config.Diff(nil, now), "nothing", generation(now.Layout, now.Generation), nil
		}
		sides[0] = "v" + strconv.FormatInt(r.Previous, 10)
	}
	left, from, err := sideOf(ctx, s, t, sides[0], now)
	if err != nil {
		return nil, "", "", err
	}
	right, to, err := sideOf(ctx, s, t, sides[1], now)
	return config.Diff(left, right), from, to, err
}

// sideOf returns a version, a directory or, for an empty text, the tree in use.
func sideOf(ctx context.Context, s *session.Session, t target, text string, now *view.Tree) (*view.Tree, string, error) {
	if text == "" {
		return now, generation(now.Layout, now.Generation), nil
	}
	if n, err := parseVersion(text); err == nil {
		tree, err := readTree(ctx, s, t, n)
		return tree, fmt.Sprintf("v%d", n), err
	}
	keys, err := config.ReadDir(text)
	if err != nil {
		return nil, "", err
	}
	return treeOf(t, keys), text, nil
}

func treeOf(t target, keys map[string][]byte) *view.Tree {
	return view.NewTree(view.Tree{Name: t.name, Path: t.path}, view.KeysOf(keys))
}

func newConfigHistoryCommand(g *globals) *cobra.Command {
	var limit int
	var patch bool
	c := configCommand(g, "history NAME|PATH", "List the versions, latest first", func(ctx context.Context, s *session.Session, t target, _ []string) error {
		list, err := config.History(ctx, s, t.path)
		if err != nil {
			return err
		}
		if len(list) == 0 {
			if err := mustExist(ctx, s, t.path); err != nil {
				return err
			}
			g.Say("%s has no versions", t.name)
		}
		if frozen, err := fleet.Frozen(ctx, s, t.path); err == nil && frozen != nil {
			g.Say("%s", frozen)
		}
		if limit > 0 {
			list = list[:min(limit, len(list))]
		}
		rollouts, err := rolloutsOf(ctx, s, t)
		if err != nil {
			return err
		}
		if !g.IsJSON() {
			return printHistory(ctx, &g.Console, s, t, list, rollouts, patch)
		}
		type entry struct {
			config.Version
			Rollout *versionRollout `json:"rollout,omitempty"`
		}
		entries := lists.Map(list, func(v config.Version) entry { return entry{v, rollouts[v.Number]} })
		return term.PrintList(&g.Console, "versions", entries)
	})
	c.Flags().IntVarP(&limit, "limit", "n", 0, "show only this number of versions (default: all)")
	c.Flags().BoolVarP(&patch, "patch", "p", false, "show the difference that each version made, too")
	return c
}

func printHistory(ctx context.Context, console *term.Console, s *session.Session, t target, list []config.Version, rollouts map[int64]*versionRollout, patch bool) error {
	tab := &term.Table{Header: []string{"VERSION", "STATE", "TIME", "KEYS", "ROLLOUT", "BY", "MESSAGE"}}
	for _, v := range list {
		state, rollout := "", cmp.Or(rollouts[v.Number], &versionRollout{})
		switch {
		case v.Active:
			state = "in use"
		case rollout.open:
			state = "being rolled out"
		case !v.Used:
			state = "unused"
		case v.RollbackOf > 0:
			state = fmt.Sprintf("of v%d", v.RollbackOf)
		}
		tab.Add(
			fmt.Sprintf("v%d", v.Number), state, v.Time.UTC().Format(time.RFC3339), strconv.Itoa(v.Count), cmp.Or(show.Joined(" ", rollout.Name, rollout.Phase), "-"),
			show.Joined("@", v.Author, v.Host), v.Message,
		)
		if !patch {
			continue
		}
		tab.Header = nil
		_ = console.PrintTable(tab)
		tab.Rows = nil
		to, err := config.ReadVersion(ctx, s, t.path, v.Number)
		if err != nil {
			return err
		}
		var from *view.Tree
		if v.Parent > 0 {
			if from, err = config.ReadVersion(ctx, s, t.path, v.Parent); err != nil && !errors.Is(err, config.ErrNoVersion) {
				return err
			}
		}
		if err = console.PrintDiff(config.Unified(config.Diff(from, to), fmt.Sprintf("v%d", v.Parent), fmt.Sprintf("v%d", v.Number))); err != nil {
			return err
		}
	}
	return console.PrintTable(tab)
}

type listedConfig struct {
	Name    string          `json:"name"`
	Path    string          `json:"path"`
	State   string          `json:"state"` // versioned, flat, deleted, damaged, gone, or not published
	Version *config.Version `json:"version,omitempty"`
	Deleted *fleet.Deleted  `json:"deleted,omitempty"`
}

func newConfigListCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "list [PATH]", Short: "List the configs of the settings, or those below a path", Args: cobra.MaximumNArgs(1),
		Long: `List the configs of the settings with the version in use, who published it and
why. With a path, or without settings, list the configs that are children of that
path, by default of /config. A deleted one is listed while "zkagent config restore" can
put it into use again. One that is gone was removed by another tool.`,
		RunE: func(c *cobra.Command, args []string) error {
			return g.withSession(c.Context(), func(ctx context.Context, s *session.Session, conf *agent.Config) error {
				targets, err := configsToList(ctx, s, conf, args)
				if err != nil {
					return err
				}
				list := make([]listedConfig, len(targets))
				for i, t := range targets {
					if list[i], err = listConfig(ctx, s, t); err != nil {
						return err
					}
				}
				return term.PrintRows(&g.Console, "configs", list, []string{"CONFIG", "VERSION", "TIME", "BY", "MESSAGE"}, func(c listedConfig) []string {
					switch v, d := c.Version, c.Deleted; {
					case d != nil:
						return []string{c.Name, c.State, d.At.Format(time.RFC3339), cmp.Or(d.By, "-"), d.Reason}
					case v == nil:
						return []string{c.Name, c.State, "-", "-", ""}
					default:
						return []string{c.Name, fmt.Sprintf("v%d", v.Number), v.Time.UTC().Format(time.RFC3339), show.Joined("@", v.Author, v.Host), v.Message}
					}
				})
			})
		},
	}
}

func configsToList(ctx context.Context, s *session.Session, conf *agent.Config, args []string) ([]target, error) {
	if len(conf.Files) > 0 && len(args) == 0 {
		return auditTargets(conf, nil)
	}
	dir, err := targetOf(&agent.Config{}, append(args, "/config")[0])
	if err != nil {
		return nil, err
	}
	names, _, err := s.Children(ctx, cmp.Or(dir.path, "/"))
	if err != nil {
		return nil, hintNearby(ctx, s, cmp.Or(dir.path, "/"), err)
	}
	slices.Sort(names)
	var list []target
	for _, name := range names {
		path := session.JoinPath(dir.path, name)
		_, there, err := s.Exists(ctx, trees.ReadyPath(path))
		if err != nil {
			return nil, err
		}
		if there || slices.Contains(names, name+"-trash") {
			list = append(list, target{name: path, path: path})
		}
	}
	return list, nil
}

func listConfig(ctx context.Context, s *session.Session, t target) (listedConfig, error) {
	one := listedConfig{Name: t.name, Path: t.path, State: "not published"}
	versions, err := config.History(ctx, s, t.path)
	if errors.Is(err, config.ErrNoVersion) {
		one.State = "flat"
		return one, nil
	}
	if i := slices.IndexFunc(versions, func(v config.Version) bool { return v.Active }); i >= 0 {
		one.State, one.Version = "versioned", &versions[i]
	} else if d, gone := fleet.InTrash(ctx, s, t.path); gone == nil {
		one.State, one.Deleted = "deleted", &d
	} else if _, _, bad := trees.ReadReady(ctx, s, t.path); err == nil && !errors.Is(bad, config.ErrNotReady) {
		one.State = "damaged"
	} else if hosts, _ := fleet.Agents(ctx, s); slices.ContainsFunc(hosts, t.missedBy) {
		one.State = "gone"
	}
	return one, err
}

// missedBy reports whether a host uses a config that is not there.
func (t target) missedBy(h fleet.HostStatus) bool {
	return h.UseOf(t.path) != (fleet.ConfigUse{}) || slices.ContainsFunc(h.Faults, func(f fleet.Fault) bool {
		return f.Code == condition.SourceGone.Code && f.Subject == "config "+t.name
	})
}
