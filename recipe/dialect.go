package recipe

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/zkagent/zkagent/session"
)

// Dialects name the layouts that a path may share with other clients. All
// contenders of a path must use dialects of one family: Curator (curator and
// curator-selector, go-zookeeper) or kazoo. Our contenders wait for those of the
// other family, but those do not wait for ours.
const (
	// Curator is the layout of Apache Curator, the default.
	Curator = "curator"
	// CuratorSelector is Curator's LeaderSelector. It names its candidates as
	// Curator names locks. Other recipes treat it as Curator.
	CuratorSelector = "curator-selector"
	// Kazoo is the layout of Python's kazoo.
	Kazoo = "kazoo"
)

// naming says how contenders are named. The text before the sequence number is the mark.
type naming struct {
	mark   string
	kind   string // of recipe; empty: kazoo's, whose kinds see each other, or unknown
	shared bool   // a reader of a read-write lock
	// hex names are <32 hex digits><mark><sequence>, as kazoo's are;
	// otherwise _c_<dashed uuid>-<mark><sequence>.
	hex bool
}

// The layouts that may share a path: Apache Curator's locks (go-zookeeper's -lock- is one),
// latches and read-write locks, and kazoo's locks. All use the one counter of the parent,
// so they have one order.
var (
	lockNames      = naming{"lock-", kindLock, false, false}
	latchNames     = naming{"latch-", kindElection, false, false}
	readNames      = naming{"__READ__", kindRW, true, false}
	writeNames     = naming{"__WRIT__", kindRW, false, false}
	kazooNames     = naming{"__lock__", "", false, true}
	kazooReadNames = naming{"__rlock__", "", true, true}

	namings = []naming{lockNames, latchNames, kazooNames, kazooReadNames, readNames, writeNames}
)

// unique returns the beginning of a name that no other znode has.
func (n naming) unique() string {
	if n.hex {
		return newHex()
	}
	return session.ProtectedPrefix(uuid.NewString())
}

// inDialect returns the naming in a dialect.
func inDialect(dialect string, curator, kazoo naming) (naming, error) {
	switch dialect {
	case "", Curator, CuratorSelector:
		return curator, nil
	case Kazoo:
		return kazoo, nil
	}
	return naming{}, fmt.Errorf("%w %q", ErrDialect, dialect)
}
