package settings

import (
	"slices"
	"strings"
	"sync"
)

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
