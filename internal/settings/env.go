package settings

import (
	"fmt"
	"path"
	"strings"

	"github.com/zkagent/zkagent/internal/command"
)

// envArgs are the arguments for the environment of a command.
type envArgs struct {
	Env     textMap `hcl:"env,optional" is:"map of strings" doc:"Environment variables: NAME = \"value\". Those of the agent block are for all commands; those of a command's own block go before them."`
	PassEnv list    `hcl:"pass_env,optional" is:"list of strings" doc:"Variables of the agent's own environment that are passed on: names, and globs such as \"APP_*\". Without it there are PATH, HOME and LANG alone."`
}

// env reads the environment of a command, over that of the agent block.
func (s *Settings) env(b envArgs) command.Env {
	e := command.Env{Set: b.Env.Value, Pass: b.PassEnv.Value}
	for _, name := range sortedKeys(e.Set) {
		err := checkVariable(name)
		if err == nil && strings.ContainsRune(e.Set[name], 0) {
			err = fmt.Errorf("the value of %s has a NUL byte", name)
		}
		if err != nil {
			s.errorAt(b.Env.At, "Invalid environment variable", "%s", sentence(err.Error()))
		}
	}
	for _, glob := range e.Pass {
		if _, err := path.Match(glob, ""); err != nil || glob == "" || strings.ContainsAny(glob, "=\x00") {
			s.errorAt(b.PassEnv.At, "Invalid environment variable", "%q is not the name of an environment variable, nor a glob such as \"APP_*\".", glob)
		}
	}
	return e.Over(s.Config.Env)
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
