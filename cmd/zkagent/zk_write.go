package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/zkagent/zkagent/agent"
	"github.com/zkagent/zkagent/fleet"
	"github.com/zkagent/zkagent/internal/trees"
	"github.com/zkagent/zkagent/session"
)

// Writing znodes by hand. Each write has two guards. It asks the user, unless --yes
// is given. It refuses to write below trees that zkagent manages, unless --force is
// given, because a manual change breaks what hosts rely on.

// zkWriting are the commands of zk that write.
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
					if err := unmanaged(ctx, s, args[0], force); err != nil {
						return err
					}
					if ok, err := g.confirm(c.Context(), c.Name()+" "+args[0]); err != nil || !ok {
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
		data, err := zkData(g, args, file)
		if err == nil && parents {
			err = s.CreateParents(ctx, args[0])
		}
		if err == nil {
			_, _, err = s.Create(ctx, args[0], data, session.Persistent)
		}
		if dir, _ := session.SplitPath(args[0]); errors.Is(err, session.ErrNoNode) {
			return fail(exitFailed, fmt.Errorf("parent %s does not exist; add --parents", dir))
		}
		return err
	})
	create.Flags().BoolVarP(&parents, "parents", "p", false, "create missing parents; by default they are an error")
	create.Flags().StringVarP(&file, "file", "f", "", "read the data from this file; - is standard input (default: DATA, else no data)")
	set := write("set PATH [DATA]", "Replace the data of a znode", "  zkagent zk set /config/site/port 81 --version 3", cobra.RangeArgs(1, 2), func(ctx context.Context, s *session.Session, args []string) error {
		data, err := zkData(g, args, file)
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

// zkData is the data that a command was given.
func zkData(g *globals, args []string, file string) ([]byte, error) {
	switch {
	case file != "" && len(args) > 1:
		return nil, usagef("DATA and --file exclude each other")
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
