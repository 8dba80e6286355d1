package settings

import (
	"fmt"
	"path"
	"strings"

	"github.com/hashicorp/hcl/v2"

	"github.com/zkagent/zkagent/internal/command"
)

// envArgs are the arguments for the environment of a command.
type envArgs struct {
	Env     hcl.Expression `hcl:"env,optional" is:"map of strings" doc:"Environment variables: NAME = \"value\". Those of the agent block are for all commands; those of a command's own block go before them."`
	PassEnv hcl.Expression `hcl:"pass_env,optional" is:"list of strings" doc:"Variables of the agent's own environment that are passed on: names, and globs such as \"APP_*\". Without it there are PATH, HOME and LANG alone."`
}

// env reads the environment of a command, over that of the agent block.
func (r *reader) env(b *envArgs) command.Env {
	e := command.Env{Set: r.strmap(&b.Env), Pass: r.strings(&b.PassEnv)}
	for _, name := range sortedKeys(e.Set) {
		err := checkVariable(name)
		if err == nil && strings.ContainsRune(e.Set[name], 0) {
			err = fmt.Errorf("the value of %s has a NUL byte", name)
		}
		if err != nil {
			r.s.errorAt(r.where(&b.Env), "Invalid environment variable", "%s", sentence(err.Error()))
		}
	}
	for _, glob := range e.Pass {
		if _, err := path.Match(glob, ""); err != nil || glob == "" || strings.ContainsAny(glob, "=\x00") {
			r.s.errorAt(r.where(&b.PassEnv), "Invalid environment variable", "%q is not the name of an environment variable, nor a glob such as \"APP_*\".", glob)
		}
	}
	return e.Over(r.s.Config.Env)
}

// checkVariable checks the name of an environment variable.
func checkVariable(name string) error {
	switch {
	case name == "" || strings.ContainsAny(name, "=\x00"):
		return fmt.Errorf("%q is not the name of an environment variable", name)
	case strings.HasPrefix(name, "ZKAGENT_"):
		return fmt.Errorf("the agent sets %s itself: take another name", name)
	}
	return nil
}
