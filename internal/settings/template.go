package settings

import (
	"cmp"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/hashicorp/hcl/v2"

	"github.com/zkagent/zkagent/internal/apply"
	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/template"
)

// maxTemplate bounds a template file.
const maxTemplate = 16 << 20

type fileBlock struct {
	At          hcl.Range  `hcl:",def_range"`
	Name        string     `hcl:"name,label"`
	Source      text       `hcl:"source,optional" is:"path" doc:"The template file, relative to the settings file; it is watched for changes."`
	Contents    text       `hcl:"contents,optional" is:"string" doc:"The template itself, instead of source. \"${\" is written \"$${\" in it."`
	Destination expression `hcl:"destination" is:"path" doc:"The file that is written. With for_each it must use each.key."`
	Mode        fileMode   `hcl:"mode,optional" is:"mode" max:"0777" doc:"Permissions of the file, in octal. The default is the mode of the file in place, else 0644."`
	Owner       text       `hcl:"owner,optional" is:"string" check:"nonempty" doc:"User that owns the file: a name or a number."`
	Group       text       `hcl:"group,optional" is:"string" check:"nonempty" doc:"Group of the file: a name or a number."`
	Backup      number     `hcl:"backup,optional" is:"number" default:"0" min:"0" max:"100" doc:"Number of previous contents to keep in the same directory."`
	Allow       list       `hcl:"allow,optional" is:"list of strings" enum:"env|file|credential" doc:"Data that the template may use besides the view: env is the environment, file the files below the template's directory, credential the credentials that systemd gives the agent."`
	Delimiters  list       `hcl:"delimiters,optional" is:"list of strings" doc:"The texts that begin and end an action, instead of [\"{{\", \"}}\"]."`
	CreateDirs  boolean    `hcl:"create_dirs,optional" is:"bool" default:"false" doc:"Make the directories of the destination that are missing: mode 0755, of the owner of the file."`
	Syntax      text       `hcl:"syntax,optional" is:"string" default:"none" enum:"none|json|yaml|toml|xml|hcl|ini" doc:"The rendered bytes must parse as this."`
	MissingKey  boolean    `hcl:"error_on_missing_key,optional" is:"bool" default:"true" doc:"Whether an entry that a map does not have is an error, or \"<no value>\". A key that is not in its config holds the file, either way."`
	MemberOrder text       `hcl:"member_order,optional" is:"string" default:"address" enum:"address|node" doc:"How members of groups are ordered: by address, or by node and then id, as consul-template orders services."`
	InPlace     boolean    `hcl:"in_place,optional" is:"bool" default:"false" doc:"Write into the file instead of renaming a new one over it: for a file that is bind-mounted by itself. Readers may see half of it."`
	Symlink     text       `hcl:"symlink,optional" is:"string" default:"auto" enum:"auto|follow|refuse" doc:"The reaction when the destination is a symbolic link: replace the file that it leads to, or fail. auto follows links, except in a directory that another user can write."`
	Subdirs     boolean    `hcl:"allow_subdirs,optional" is:"bool" default:"false" doc:"With for_each: each.key may hold slashes, and so name directories below the one of the destination."`
	Adopt       boolean    `hcl:"adopt,optional" is:"bool" default:"false" doc:"With for_each: take over a file that the agent did not write. Otherwise it stays, with the condition destination-taken."`
	Drift       text       `hcl:"drift,optional" is:"string" default:"repair" enum:"repair|report" doc:"The reaction when somebody else has changed the file: write it again, or only report it."`
	MaxSize     size       `hcl:"max_size,optional" is:"size" default:"64MiB" min:"1" max:"1GiB" doc:"The most that the template may render."`
	Timeout     duration   `hcl:"timeout,optional" is:"duration" default:"10s" min:"10ms" max:"10m" doc:"The longest that the template may run."`
}

// workBlock are the arguments of a template and a bundle alike.
type workBlock struct {
	ForEach expression   `hcl:"for_each,optional" is:"reference" doc:"One file, or the whole bundle, for each group of a set (groups.NAME), member of a group (group.NAME), or key of a config (config.NAME). A file that is no longer wanted is removed."`
	Splay   duration     `hcl:"splay,optional" is:"duration" max:"1h" doc:"Largest random delay before it is applied; the default is the splay of the agent block."`
	Wait    *waitBlock   `hcl:"wait,block" doc:"Wait for quiet before applying. Without the block the agent applies a change at once, and applies changes that arrive meanwhile together."`
	Check   *checkBlock  `hcl:"check,block" doc:"A command that must succeed with the new files, all of a bundle at once."`
	Reload  *reloadBlock `hcl:"reload,block" doc:"The command that makes the program use the new files, once for all files of a bundle."`
}

// templateBlock is a bundle of one.
type templateBlock struct {
	fileBlock
	workBlock
}

type bundleBlock struct {
	At        hcl.Range    `hcl:",def_range"`
	Name      string       `hcl:"name,label"`
	Templates []*fileBlock `hcl:"template,block" doc:"One file of the bundle."`
	workBlock
}

func (s *Settings) resolveBundles(all *root) {
	for _, b := range all.Templates {
		c := s.resolveWork(b.At, b.Name, &b.workBlock)
		c.Templates = []apply.FileConfig{s.resolveFile(&b.fileBlock, b.Name, b.ForEach.Set)}
		s.Config.Bundles = append(s.Config.Bundles, c)
	}
	for _, b := range all.Bundles {
		c := s.resolveWork(b.At, b.Name, &b.workBlock)
		if len(b.Templates) == 0 {
			s.errorAt(b.At, "Bundle without a template", "Bundle %q has no template block, so there is nothing to render.", b.Name)
		}
		var names []string
		for _, f := range b.Templates {
			if slices.Contains(names, f.Name) {
				s.errorAt(f.At, "Duplicate template", "Bundle %q has two templates named %q.", b.Name, f.Name)
			}
			names = append(names, f.Name)
			c.Templates = append(c.Templates, s.resolveFile(f, b.Name+"/"+f.Name, b.ForEach.Set))
		}
		s.Config.Bundles = append(s.Config.Bundles, c)
	}
}

func (s *Settings) resolveFile(b *fileBlock, full string, forEach bool) apply.FileConfig {
	dest := s.destination(b.Destination, forEach)
	t := apply.FileConfig{
		Name: b.Name, Position: position(b.At), Source: b.Source.Value, Contents: b.Contents.Value,
		Destination: dest.eval, DestinationText: dest.text, CreateDirs: b.CreateDirs.Value,
		AllowSubdirs: b.Subdirs.Value, Adopt: b.Adopt.Value, Drift: b.Drift.Value,
		Config: template.Config{
			Dir: filepath.Dir(b.At.Filename), Allow: b.Allow.Value, MissingKeyOK: !b.MissingKey.Value, ByNode: b.MemberOrder.Value == "node", Syntax: b.Syntax.Value, Syntaxes: Syntaxes(),
			LookupEnv: s.opts.Env, MaxOutput: b.MaxSize.Value, Timeout: b.Timeout.Value,
		},
		File: files.File{
			Mode: b.Mode.Value, Owner: b.Owner.Value, Group: b.Group.Value, Backup: b.Backup.Value,
			InPlace: b.InPlace.Value, Symlink: b.Symlink.Value,
		},
	}
	t.Left, t.Right = s.delimiters(b.Delimiters)
	s.claim(dest, full)
	s.checkOwner(b, t)
	source, contents := b.Source.Set, b.Contents.Set
	switch {
	case source && contents:
		s.errorAt(b.Contents.At, "Two templates in one", "Template %q has both source and contents; give one of them.", b.Name)
	case !source && !contents:
		s.errorAt(b.At, "Template without text", "Template %q has neither source nor contents.", b.Name)
	case source:
		if data, err := readClosed(t.Source, maxTemplate); err != nil {
			s.errorAt(b.Source.At, "Template cannot be read", "%v.", err)
		} else if t.Source != "" {
			s.parseTemplate(&t, string(data), origin{file: t.Source, at: b.Source.At})
		}
	default:
		s.parseTemplate(&t, t.Contents, s.contentsOrigin(b.Contents.At))
	}
	return t
}

// delimiters are what actions begin and end with; empty without the argument.
func (s *Settings) delimiters(delimiters list) (left, right string) { //nolint:nonamedreturns // two texts need names.
	list := delimiters.Value
	if list == nil {
		return "", ""
	}
	if len(list) != 2 || list[0] == "" || list[1] == "" || list[0] == list[1] {
		s.errorAt(delimiters.At, "Wrong delimiters", "delimiters are two different texts, as in [\"[[\", \"]]\"].")
		return "", ""
	}
	return list[0], list[1]
}

// claim remembers a fixed destination; two templates must not share one.
func (s *Settings) claim(d destination, name string) {
	key := cmp.Or(realPath(d.fixed), "\x00"+d.text) // evaluated: equal when it is spelled the same
	if d.eval == nil {
		return
	}
	if other, ok := s.claims[key]; ok {
		s.errorAt(d.at, "Two templates with one destination", "%s is already written by template %q at %s.", d.text, other.name, place(other.at))
		return
	}
	s.claims[key] = claimed{name, d.at}
	if s.isSettings(key) {
		s.errorAt(d.at, "Destination is a settings file", "The agent would load %s as settings. Name another directory or another ending than .hcl.", d.fixed)
	}
	// A warning: another user could make the directory, and the other templates work.
	if info, err := os.Stat(d.fixed); d.fixed != "" && err == nil && info.IsDir() {
		s.warnAt(d.at, "Destination is a directory", "%s is a directory; name the file in it.", d.fixed)
	}
}

// realPath is a path without links to directories: one file has one such path.
func realPath(path string) string {
	if path == "" {
		return ""
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return path
	}
	return filepath.Join(dir, filepath.Base(path))
}

// isSettings reports whether the agent reads the file as settings, or would at
// its next load.
func (s *Settings) isSettings(path string) bool {
	for _, file := range s.Config.Files {
		if abs, err := filepath.Abs(file); err == nil && realPath(abs) == path {
			return true
		}
	}
	for _, p := range s.given {
		if abs, err := filepath.Abs(p); err == nil && isSettingsName(filepath.Base(path)) && realPath(filepath.Join(abs, filepath.Base(path))) == path {
			return true
		}
	}
	return false
}

func position(at hcl.Range) string { return fmt.Sprintf("%s:%d", at.Filename, at.Start.Line) }

// claimed is who writes a destination.
type claimed struct {
	name string
	at   hcl.Range
}

func (s *Settings) checkOwner(b *fileBlock, t apply.FileConfig) {
	if t.Owner != "" {
		if _, err := user.Lookup(t.Owner); err != nil && !isID(t.Owner) {
			s.hostAt(b.Owner.At, "Unknown user", "There is no user %q on this host.", t.Owner)
		}
	}
	if t.Group != "" {
		if _, err := user.LookupGroup(t.Group); err != nil && !isID(t.Group) {
			s.hostAt(b.Group.At, "Unknown group", "There is no user group %q on this host.", t.Group)
		}
	}
}

func isID(text string) bool {
	n, err := strconv.ParseUint(text, 10, 32)
	return err == nil && n < 1<<32-1
}
