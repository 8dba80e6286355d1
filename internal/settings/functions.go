package settings

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"

	"github.com/zkagent/zkagent/internal/files"
	"github.com/zkagent/zkagent/internal/lists"
)

const maxCredential = 1 << 20

// pure are the functions that depend on their arguments alone.
var pure = map[string]function.Function{
	"chomp": stdlib.ChompFunc, "coalesce": stdlib.CoalesceFunc, "coalescelist": stdlib.CoalesceListFunc,
	"compact": stdlib.CompactFunc, "concat": stdlib.ConcatFunc, "contains": stdlib.ContainsFunc,
	"distinct": stdlib.DistinctFunc, "element": stdlib.ElementFunc, "flatten": stdlib.FlattenFunc,
	"format": stdlib.FormatFunc, "formatlist": stdlib.FormatListFunc, "indent": stdlib.IndentFunc,
	"join": stdlib.JoinFunc, "jsondecode": jsonDecodeFunc, "jsonencode": stdlib.JSONEncodeFunc,
	"keys": stdlib.KeysFunc, "length": stdlib.LengthFunc, "lookup": stdlib.LookupFunc, "lower": stdlib.LowerFunc,
	"max": stdlib.MaxFunc, "merge": stdlib.MergeFunc, "min": stdlib.MinFunc, "parseint": stdlib.ParseIntFunc,
	"range": stdlib.RangeFunc, "regex": stdlib.RegexFunc, "regexall": stdlib.RegexAllFunc,
	"regexreplace": stdlib.RegexReplaceFunc, "replace": stdlib.ReplaceFunc, "reverse": stdlib.ReverseListFunc,
	"slice": stdlib.SliceFunc, "sort": stdlib.SortFunc, "split": stdlib.SplitFunc, "strlen": stdlib.StrlenFunc,
	"strrev": stdlib.ReverseFunc, "substr": stdlib.SubstrFunc, "title": stdlib.TitleFunc, "trim": stdlib.TrimFunc,
	"trimprefix": stdlib.TrimPrefixFunc, "trimspace": stdlib.TrimSpaceFunc, "trimsuffix": stdlib.TrimSuffixFunc,
	"upper": stdlib.UpperFunc, "values": stdlib.ValuesFunc, "zipmap": stdlib.ZipmapFunc,
}

// maxDecoded bounds what jsondecode reads: a znode holds no more.
const maxDecoded = 1 << 20

// jsonDecodeFunc is the jsondecode of HCL behind bounds: it can be given a value
// from ZooKeeper, and takes memory by the square of the depth.
var jsonDecodeFunc = function.New(&function.Spec{
	Params: stdlib.JSONDecodeFunc.Params(),
	Type: func(args []cty.Value) (cty.Type, error) {
		if arg := args[0]; arg.IsKnown() && !arg.IsNull() {
			text := arg.AsString()
			if len(text) > maxDecoded {
				return cty.NilType, function.NewArgErrorf(0, "%d bytes are too large: the limit is %d", len(text), maxDecoded)
			}
			depth := 0
			for _, c := range []byte(text) {
				switch c {
				case '[', '{':
					depth++
				case ']', '}':
					depth--
				}
				if depth > maxDepth {
					return cty.NilType, function.NewArgErrorf(0, "nested deeper than %d", maxDepth)
				}
			}
		}
		return stdlib.JSONDecodeFunc.ReturnTypeForValues(args)
	},
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) { return stdlib.JSONDecode(args[0]) },
})

// maxDepth is how deep lists and objects may contain each other.
const maxDepth = 100

func (s *Settings) context(file string, vars map[string]cty.Value) *hcl.EvalContext {
	dir := filepath.Dir(file)
	base, ok := s.evals[dir]
	if !ok {
		base = &hcl.EvalContext{Functions: s.functions(dir), Variables: map[string]cty.Value{}}
		s.evals[dir] = base
	}
	if vars == nil {
		return base
	}
	return &hcl.EvalContext{Functions: base.Functions, Variables: vars}
}

func (s *Settings) functions(dir string) map[string]function.Function {
	funcs := maps.Clone(pure)
	// A variable that is not set is the default, and without one the empty string.
	funcs["env"] = textFunc([]string{"name"}, "default", func(args []string) (string, error) {
		if len(args) > 2 {
			return "", errors.New("env takes a name and a default")
		}
		v, ok := s.opts.Env(args[0])
		if ok && SecretName(args[0]) {
			s.secrets.add(v)
		}
		if !ok && len(args) == 2 {
			v = args[1]
		}
		return v, nil
	})
	funcs["file"] = textFunc([]string{"path"}, "", func(args []string) (string, error) {
		path := args[0]
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		data, err := files.ReadNamed(path, maxCredential)
		s.secrets.add(strings.TrimSpace(string(data)))
		return string(data), err
	})
	funcs["credential"] = textFunc([]string{"name"}, "", func(args []string) (string, error) { return s.credential(args[0]) })
	funcs["hostname"] = textFunc(nil, "", func([]string) (string, error) { return s.opts.Hostname() })
	return funcs
}

var errNoCredential = errors.New("cannot read a credential")

// credential reads a systemd credential without its final line break.
func (s *Settings) credential(name string) (string, error) {
	if name == "" || name != filepath.Base(name) || strings.HasPrefix(name, ".") {
		return "", fmt.Errorf("%q is not the name of a credential", name)
	}
	dir, ok := s.opts.Env("CREDENTIALS_DIRECTORY")
	if !ok || dir == "" {
		return s.noCredential(fmt.Sprintf("credential %q: $CREDENTIALS_DIRECTORY is not set; give the unit a LoadCredential=%s:... line", name, name))
	}
	data, err := files.ReadNamed(filepath.Join(dir, name), maxCredential)
	if err != nil {
		return s.noCredential(fmt.Sprintf("credential %q in $CREDENTIALS_DIRECTORY: %v", name, err))
	}
	value := strings.TrimRight(string(data), "\r\n")
	s.secrets.add(value)
	return value, nil
}

// noCredential is an error, or with [Options.Offline] a warning and a stand-in.
func (s *Settings) noCredential(text string) (string, error) {
	if !s.opts.Offline {
		return "", fmt.Errorf("%w: %s", errNoCredential, text)
	}
	if !s.loaded {
		s.missing = append(s.missing, text+".")
	}
	return "credential:missing", nil
}

// textFunc is a function of texts; more, unless empty, names those that may follow.
func textFunc(params []string, more string, fn func(args []string) (string, error)) function.Function {
	spec := &function.Spec{Type: function.StaticReturnType(cty.String)}
	for _, name := range params {
		spec.Params = append(spec.Params, function.Parameter{Name: name, Type: cty.String})
	}
	if more != "" {
		spec.VarParam = &function.Parameter{Name: more, Type: cty.String}
	}
	spec.Impl = func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		texts := lists.Map(args, cty.Value.AsString)
		v, err := fn(texts)
		return cty.StringVal(v), err
	}
	return function.New(spec)
}

// How many secrets are kept, and how large: who looks for them in a text looks
// for each.
const (
	maxSecrets = 1000
	maxSecret  = 4 << 10
)

// secrets are the values that settings got from where secrets are kept: from
// credentials, files and variables with such a name. They can stand in a status or
// a log without a name beside them. Commands are evaluated by several goroutines.
type secrets struct {
	mu   sync.Mutex
	list []string
}

func (k *secrets) add(value string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if value != "" && len(value) <= maxSecret && len(k.list) < maxSecrets && !slices.Contains(k.list, value) {
		k.list = append(k.list, value)
	}
}

// Secrets are what these settings got from credentials, from files, and from
// variables with a name like a secret's, as far as they have been evaluated.
func (s *Settings) Secrets() []string {
	s.secrets.mu.Lock()
	defer s.secrets.mu.Unlock()
	return slices.Clone(s.secrets.list)
}

// SecretName reports whether a variable's name says that it is a secret.
func SecretName(name string) bool {
	name = strings.ToLower(name)
	return slices.ContainsFunc([]string{"pass", "secret", "token", "credential", "auth", "key"}, func(w string) bool { return strings.Contains(name, w) })
}
