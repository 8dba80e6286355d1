package main

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/doctor"
	"github.com/zkagent/zkagent/internal/lists"
	"github.com/zkagent/zkagent/internal/term"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
)

func newZKCommand(g *globals) *cobra.Command {
	acl := zkReading(g, "acl PATH", "Print the ACL of a znode, or set it", zkACL)
	acl.AddCommand(newACLSetCommand(g))
	return parent("zk", "Read znodes, and write them by hand", append(
		zkWriting(g),
		zkReading(g, "ls [PATH]", "List the children of a znode", zkLS),
		newZKTreeCommand(g),
		rawFlag(g, zkReading(g, "get PATH", "Print the data of a znode", zkGet)),
		zkReading(g, "stat PATH", "Print the metadata of a znode", zkStat),
		acl,
		zkReading(g, "export PATH", "Print a subtree as JSON lines", zkExport),
		newWhoAmICommand(g),
	)...)
}

func zkReading(g *globals, use, short string, run func(context.Context, *term.Console, *session.Session, string) error) *cobra.Command {
	args := cobra.ExactArgs(1)
	if strings.HasSuffix(use, "[PATH]") {
		args = cobra.MaximumNArgs(1)
	}
	return &cobra.Command{
		Use: use, Short: short, Args: args,
		RunE: func(c *cobra.Command, args []string) error {
			path := append(args, "/")[0]
			if err := session.ValidatePath(path); err != nil {
				return fail(exitUsage, err)
			}
			return g.withSession(c.Context(), func(ctx context.Context, s *session.Session, _ *agent.Config) error {
				return hintNearby(ctx, s, path, run(ctx, &g.Console, s, path))
			})
		},
	}
}

func rawFlag(g *globals, c *cobra.Command) *cobra.Command {
	c.Flags().BoolVar(&g.Raw, "raw", false, "print control characters as they are; by default a terminal gets them escaped")
	return c
}

func zkLS(ctx context.Context, console *term.Console, s *session.Session, path string) error {
	names, _, err := s.Children(ctx, path)
	if err != nil {
		return err
	}
	slices.Sort(names)
	return printLines(console, "children", names)
}

func printLines(console *term.Console, key string, list []string) error {
	if console.IsJSON() {
		return term.PrintList(console, key, list)
	}
	for _, text := range list {
		console.Printf("%s\n", term.Printable(text))
	}
	return console.Failed()
}

// treeData bounds what a line of a tree shows of a znode's data, in characters.
const treeData = 60

func dataWords(data []byte) string {
	if !utf8.Valid(data) {
		return fmt.Sprintf("(%d bytes, not text)", len(data))
	}
	if words := []rune(term.Printable(string(data))); len(words) > treeData {
		return fmt.Sprintf("%s... (%d bytes)", string(words[:treeData]), len(data))
	}
	return term.Printable(string(data))
}

func newZKTreeCommand(g *globals) *cobra.Command {
	var levels int
	var withData bool
	c := zkReading(g, "tree [PATH]", "Show a znode and everything below it", func(ctx context.Context, console *term.Console, s *session.Session, path string) error {
		return walk(ctx, s, path, 0, levels, func(z znode) error {
			var data []byte
			if withData {
				var err error
				if data, _, err = s.Get(ctx, z.path); err != nil {
					return err
				}
			}
			if console.IsJSON() {
				fields := map[string]any{"path": z.path, "children": len(z.children)}
				if withData {
					putData(fields, data)
				}
				return console.Line(fields)
			}
			name := z.path
			if z.depth > 0 {
				name = z.path[strings.LastIndexByte(z.path, '/')+1:]
			}
			line := strings.Repeat("  ", z.depth) + term.Printable(name)
			if len(data) > 0 {
				line += "  " + dataWords(data)
			}
			console.Printf("%s\n", line)
			return nil
		})
	})
	c.Flags().IntVar(&levels, "depth", 0, "number of levels to show below the znode (default: all)")
	c.Flags().BoolVar(&withData, "data", false, "show the data, too: the beginning in text, all of it with --json, which prints a line for each znode")
	return c
}

func zkGet(ctx context.Context, console *term.Console, s *session.Session, path string) error {
	data, stat, err := s.Get(ctx, path)
	if err != nil {
		return err
	}
	if console.IsJSON() {
		return console.PrintJSON("znode", znodeJSON(path, data, stat))
	}
	_ = console.Data(data)
	if term.IsTerminal(console.Out) && !strings.HasSuffix(string(data), "\n") {
		console.Printf("\n")
	}
	return console.Failed()
}

func zkStat(ctx context.Context, console *term.Console, s *session.Session, path string) error {
	stat, ok, err := s.Exists(ctx, path)
	switch {
	case err != nil:
		return err
	case !ok:
		return session.ErrNoNode
	case console.IsJSON():
		return console.PrintJSON("stat", statJSON(stat))
	}
	rows := [][2]any{
		{"czxid", hexID(stat.Czxid)},
		{"ctime", stamp(stat.Ctime)},
		{"mzxid", hexID(stat.Mzxid)},
		{"mtime", stamp(stat.Mtime)},
		{"pzxid", hexID(stat.Pzxid)},
		{"version", stat.Version},
		{"cversion", stat.Cversion},
		{"aversion", stat.Aversion},
		{"ephemeralOwner", hexID(stat.EphemeralOwner)},
		{"dataLength", stat.DataLength},
		{"numChildren", stat.NumChildren},
	}
	return term.PrintRows(console, "", rows, nil, func(r [2]any) []string { return []string{fmt.Sprint(r[0]), fmt.Sprint(r[1])} })
}

func newACLSetCommand(g *globals) *cobra.Command {
	var recursive bool
	c := &cobra.Command{
		Use:   "set PATH ACL...",
		Short: "Set the ACL of a znode: SCHEME:ID:PERMISSIONS, such as world:anyone:r auth::cdrwa",
		Args:  cobra.MinimumNArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			if err := session.ValidatePath(args[0]); err != nil {
				return fail(exitUsage, err)
			}
			acl := make([]session.ACL, len(args)-1)
			for i, text := range args[1:] {
				var err error
				if acl[i], err = session.ParseACL(text); err != nil {
					return fail(exitUsage, err)
				}
			}
			return g.withSession(c.Context(), func(ctx context.Context, s *session.Session, _ *agent.Config) error {
				return setACL(ctx, c.Context(), g, s, args[0], acl, recursive)
			})
		},
	}
	c.Flags().BoolVarP(&recursive, "recursive", "r", false, "set it also on each znode below PATH that everybody may change; others keep their ACL")
	return c
}

func setACL(ctx, whole context.Context, g *globals, s *session.Session, path string, acl []session.ACL, recursive bool) error {
	_, stat, err := s.GetACL(ctx, path)
	if err != nil {
		return hintNearby(ctx, s, path, err)
	}
	list := []doctor.OpenZnode{{Path: path, Version: stat.Aversion}}
	if recursive {
		open, _, err := doctor.OpenZnodes(ctx, s, path, math.MaxInt)
		if err != nil {
			return err
		}
		list = append(list, slices.DeleteFunc(open, func(z doctor.OpenZnode) bool { return z.Path == path })...)
	}
	question := "set the ACL of " + path
	if n := len(list) - 1; n > 0 {
		question += " and of " + term.Count(n, "znode") + " below it that everybody may change"
	}
	if err := g.confirm(whole, question); err != nil {
		return err
	}
	// Deepest first: if we stop half-way, we still have the right to continue.
	for _, z := range slices.Backward(list) {
		if _, err := s.SetACL(ctx, z.Path, acl, z.Version); err != nil && (z.Path == path || !errors.Is(err, session.ErrNoNode)) {
			return hintNearby(ctx, s, z.Path, err)
		}
	}
	return nil
}

func zkACL(ctx context.Context, console *term.Console, s *session.Session, path string) error {
	list, _, err := s.GetACL(ctx, path)
	if err != nil {
		return err
	}
	return printLines(console, "acl", lists.Map(list, func(a session.ACL) string {
		if a.Scheme == "digest" {
			user, _, _ := strings.Cut(a.ID, ":")
			a.ID = user + ":(secret)"
		}
		return session.FormatACL(a)
	}))
}

// zkExport prints each znode with its data; what is not text is in base64.
func zkExport(ctx context.Context, console *term.Console, s *session.Session, path string) error {
	return walk(ctx, s, path, 0, 0, func(z znode) error {
		data, stat, err := s.Get(ctx, z.path)
		if err != nil {
			return err
		}
		line, err := term.Document(znodeJSON(z.path, data, stat))
		console.Printf("%s\n", line)
		return cmp.Or(err, console.Failed())
	})
}

type znode struct {
	path     string
	depth    int
	children []string
}

// maxDepth bounds a walk; ZooKeeper's own limit is the length of a path.
const maxDepth = 1000

// walk visits a subtree in order, down to so many levels below depth 0; 0 is all. Znodes
// that vanish meanwhile are skipped.
func walk(ctx context.Context, s *session.Session, path string, depth, levels int, visit func(znode) error) error {
	names, _, err := s.Children(ctx, path)
	if errors.Is(err, session.ErrNoNode) && depth > 0 {
		return nil
	}
	if err != nil {
		return err
	}
	slices.Sort(names)
	if err := visit(znode{path, depth, names}); err != nil && !errors.Is(err, session.ErrNoNode) {
		return err
	}
	if levels > 0 && depth == levels {
		return nil
	}
	if depth >= maxDepth {
		return fmt.Errorf("walk %s: deeper than %d", path, maxDepth)
	}
	for _, n := range names {
		if err := walk(ctx, s, session.JoinPath(path, n), depth+1, levels, visit); err != nil {
			return err
		}
	}
	return nil
}

func znodeJSON(path string, data []byte, stat session.Stat) map[string]any {
	m := map[string]any{"path": path, "stat": statJSON(stat)}
	putData(m, data)
	return m
}

func putData(fields map[string]any, data []byte) {
	if utf8.Valid(data) {
		fields["data"] = string(data)
	} else {
		fields["base64"] = base64.StdEncoding.EncodeToString(data)
	}
}

func statJSON(s session.Stat) map[string]any {
	return map[string]any{
		"czxid": s.Czxid, "mzxid": s.Mzxid, "pzxid": s.Pzxid, "ctime": stamp(s.Ctime), "mtime": stamp(s.Mtime),
		"version": s.Version, "cversion": s.Cversion, "aversion": s.Aversion, "ephemeral_owner": s.EphemeralOwner,
		"data_length": s.DataLength, "num_children": s.NumChildren,
	}
}

// stamp is a time of ZooKeeper, which counts milliseconds.
func stamp(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339Nano) }

func hexID(n int64) string { return fmt.Sprintf("0x%x", uint64(n)) }

type identityRow struct {
	Scheme      string `json:"scheme,omitempty"`
	ID          string `json:"id,omitempty"`
	Path        string `json:"path,omitempty"`
	Permissions string `json:"permissions,omitempty"`
}

func newWhoAmICommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:     "whoami [PATH]...",
		Short:   "Show the identities that ZooKeeper sees, and their permissions",
		Example: "  zkagent zk whoami\n  zkagent zk whoami /services/web /config/web",
		RunE: func(c *cobra.Command, args []string) error {
			for _, path := range args {
				if err := session.ValidatePath(path); err != nil {
					return fail(exitUsage, err)
				}
			}
			return g.withSession(c.Context(), func(ctx context.Context, s *session.Session, _ *agent.Config) error {
				rows, err := identityRows(ctx, s, args)
				if err != nil {
					return err
				}
				if g.IsJSON() {
					return term.PrintList(&g.Console, "identities", rows)
				}
				for _, r := range rows {
					line := r.Scheme + ":" + r.ID
					if r.Path != "" {
						line = r.Path + ": " + cmp.Or(r.Permissions, "nothing")
					}
					g.Printf("%s\n", term.Printable(line))
				}
				return g.Failed()
			})
		},
	}
}

func identityRows(ctx context.Context, s *session.Session, paths []string) ([]identityRow, error) {
	ids, err := s.WhoAmI(ctx)
	if errors.Is(err, session.ErrUnimplemented) {
		return nil, fmt.Errorf("the server is older than ZooKeeper 3.7 and cannot say it: %w", err)
	}
	if err != nil {
		return nil, err
	}
	rows := lists.Map(ids, func(i session.Identity) identityRow { return identityRow{Scheme: i.Scheme, ID: i.ID} })
	for _, path := range paths {
		acl, _, err := s.GetACL(ctx, path)
		if err != nil && !errors.Is(err, session.ErrNoAuth) {
			return nil, hintNearby(ctx, s, path, err)
		}
		rows = append(rows, identityRow{Path: path, Permissions: session.FormatPermissions(s.Permissions(acl, ids))})
	}
	return rows, nil
}

// Writing znodes by hand. Each write has two guards. It asks the user, unless --yes
// is given. It refuses to write below trees that zkagent manages, unless --force is
// given, because a manual change breaks what hosts rely on.

func zkWriting(g *globals) []*cobra.Command {
	var version int32
	var force, parents, recursive bool
	var file string
	write := func(use, short, example string, args cobra.PositionalArgs, run func(context.Context, *session.Session, []string) error) *cobra.Command {
		c := &cobra.Command{
			Use: use, Short: short, Example: example, Args: args,
			RunE: func(c *cobra.Command, args []string) error {
				if err := session.ValidatePath(args[0]); err != nil {
					return fail(exitUsage, err)
				}
				return g.withSession(c.Context(), func(ctx context.Context, s *session.Session, _ *agent.Config) error {
					err := unmanaged(ctx, s, args[0], force)
					if err == nil {
						err = g.confirm(c.Context(), c.Name()+" "+args[0])
					}
					if err == nil { // The answer may come late.
						err = unmanaged(ctx, s, args[0], force)
					}
					if err != nil {
						return err
					}
					return hintNearby(ctx, s, args[0], run(ctx, s, args))
				})
			},
		}
		c.Flags().BoolVar(&force, "force", false, "allow a znode in a tree that zkagent manages; by default that is refused")
		return c
	}
	create := write("create PATH [DATA]", "Create a znode", "  zkagent zk create /config/site/port 80 --parents --yes", cobra.RangeArgs(1, 2), func(ctx context.Context, s *session.Session, args []string) error {
		data, err := g.dataOf("DATA", args, file)
		if err == nil && parents {
			err = s.CreateParents(ctx, args[0])
		}
		if err == nil {
			_, _, err = s.Create(ctx, args[0], data, session.Persistent)
		}
		if dir, _ := session.SplitPath(args[0]); errors.Is(err, session.ErrNoNode) {
			return fail(exitFailed, fmt.Errorf("parent %s does not exist; add --parents", dir))
		} else if errors.Is(err, session.ErrNodeExists) {
			return fail(exitFailed, fmt.Errorf("%s exists already", args[0]), "\"zkagent zk set "+args[0]+" DATA\" replaces its data")
		}
		return err
	})
	create.Flags().BoolVarP(&parents, "parents", "p", false, "create missing parents; by default they are an error")
	create.Flags().StringVarP(&file, "file", "f", "", "read the data from this file; - is standard input (default: DATA, else no data)")
	set := write("set PATH [DATA]", "Replace the data of a znode", "  zkagent zk set /config/site/port 81 --version 3", cobra.RangeArgs(1, 2), func(ctx context.Context, s *session.Session, args []string) error {
		data, err := g.dataOf("DATA", args, file)
		if err == nil {
			_, err = s.Set(ctx, args[0], data, version)
		}
		return versionConflict(args[0], version, err)
	})
	set.Flags().StringVarP(&file, "file", "f", "", "read the data from this file; - is standard input (default: DATA, else no data)")
	set.Flags().Int32Var(&version, "version", -1, "only if the data has this version, as zk stat shows it; -1 is any version")
	rm := write("rm PATH", "Delete a znode", "  zkagent zk rm /config/site/port --version 3\n  zkagent zk rm /config/old --recursive --yes", cobra.ExactArgs(1), func(ctx context.Context, s *session.Session, args []string) error {
		if err := unfollowed(ctx, s, args[0]); err != nil {
			return err
		}
		if !recursive {
			return versionConflict(args[0], version, s.Delete(ctx, args[0], version))
		}
		return removeTree(ctx, s, args[0], force)
	})
	rm.Flags().BoolVarP(&recursive, "recursive", "r", false, "delete everything below it, too; by default a znode with children is an error")
	rm.Flags().Int32Var(&version, "version", -1, "only if the data has this version, as zk stat shows it; -1 is any version")
	return []*cobra.Command{create, set, rm}
}

// versionConflict explains that the data of a znode has another version.
func versionConflict(path string, version int32, err error) error {
	if errors.Is(err, session.ErrBadVersion) {
		return fail(exitTemporary, fmt.Errorf("%s does not have version %d: %w", path, version, err), "\"zkagent zk stat "+path+"\" shows the version")
	}
	return err
}

// dataOf is the data that a command was given as its second argument or by --file.
func (g *globals) dataOf(argument string, args []string, file string) ([]byte, error) {
	switch {
	case file != "" && len(args) > 1:
		return nil, usagef("%s and --file exclude each other", argument)
	case file != "":
		return g.readInput(file)
	case len(args) > 1:
		return []byte(args[1]), nil
	}
	return nil, nil
}

// unmanaged rejects a path that zkagent manages: its own znodes, and config trees
// with a ready rule.
func unmanaged(ctx context.Context, s *session.Session, path string, force bool) error {
	if force {
		return nil
	}
	hint := "--force writes all the same"
	if path == "/zookeeper" || strings.HasPrefix(path, "/zookeeper/") || path == "/zkagent" || strings.HasPrefix(path, "/zkagent/") {
		return fail(exitFailed, fmt.Errorf("a program maintains %s", path), hint)
	}
	for dir := path; dir != "/" && dir != ""; dir, _ = session.SplitPath(dir) {
		_, ok, err := s.Exists(ctx, trees.ReadyPath(dir))
		if err != nil {
			return err
		}
		if ok {
			return fail(exitFailed, fmt.Errorf("%s belongs to the config %s, whose readers rely on its ready znode", path, dir),
				"\"zkagent config edit "+dir+"\" changes it for all hosts at once; "+hint)
		}
	}
	return nil
}

// unfollowed refuses to remove what agents use.
func unfollowed(ctx context.Context, s *session.Session, path string) error {
	followers, err := fleet.Followers(ctx, s, path)
	for _, root := range slices.Sorted(maps.Keys(followers)) {
		if rel, below := strings.CutPrefix(path, root+"/"); below && !trees.IsReserved(rel) {
			continue // a key: its readers see the change
		}
		return fail(exitFailed, fmt.Errorf("%s use the config %s", someHosts(followers[root]), root),
			"\"zkagent config delete "+root+"\" takes it out of use, and can be taken back")
	}
	return err
}

// removeTree deletes a znode with everything below it, the deepest first. Without
// force it deletes nothing if something below it is managed.
func removeTree(ctx context.Context, s *session.Session, path string, force bool) error {
	if _, _, err := s.Children(ctx, path); err != nil {
		return err // of a missing znode: DeleteTree takes it for deleted
	}
	return s.DeleteTree(ctx, path, func(p string) error {
		dir, name := session.SplitPath(p)
		switch {
		case force:
		case name == "ready":
			return fail(exitFailed, fmt.Errorf("the config %s is below %s", dir, path), "--force deletes it, too")
		case p == "/zookeeper" || p == "/zkagent":
			return fail(exitFailed, fmt.Errorf("a program maintains %s", p), "--force deletes it, too")
		}
		return nil
	})
}

// mustExist returns an error, with what exists near it, when a config is missing.
func mustExist(ctx context.Context, s *session.Session, path string) error {
	if _, ok, err := s.Exists(ctx, path); err != nil || ok {
		return err
	}
	return nearby(ctx, s, path, fmt.Errorf("there is no config at %s", path))
}

// hintNearby adds to the error of a missing znode which znodes exist near it.
func hintNearby(ctx context.Context, s *session.Session, path string, err error) error {
	if !errors.Is(err, session.ErrNoNode) {
		return err
	}
	return nearby(ctx, s, path, fmt.Errorf("there is no znode %s", path))
}

func nearby(ctx context.Context, s *session.Session, path string, missing error) error {
	for dir := path; dir != "/"; {
		dir, _ = session.SplitPath(dir)
		names, _, err := s.Children(ctx, dir)
		names = slices.DeleteFunc(names, func(n string) bool { return strings.HasSuffix(n, "-lock") || strings.HasSuffix(n, "-trash") })
		switch {
		case errors.Is(err, session.ErrNoNode):
			continue
		case err != nil:
			return fail(exitFailed, missing)
		case len(names) == 0:
			return fail(exitFailed, missing, dir+" has no children")
		}
		return fail(exitFailed, missing, dir+" has "+listed(strings.TrimPrefix(path, strings.TrimSuffix(dir, "/")+"/"), names))
	}
	return fail(exitFailed, missing)
}
