package recipe

import "fmt"

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

// naming says how contenders are named.
type naming struct {
	mark string
	// hex names are <32 hex digits><mark><sequence>, as kazoo's are;
	// otherwise _c_<dashed uuid>-<mark><sequence>.
	hex bool
}

// lockNaming returns the naming of an exclusive or shared contender.
func lockNaming(dialect string, write, shared bool) (naming, error) {
	switch dialect {
	case "", Curator, CuratorSelector:
		switch {
		case shared:
			return naming{mark: "__READ__"}, nil
		case write:
			return naming{mark: "__WRIT__"}, nil
		}
		return naming{mark: "lock-"}, nil
	case Kazoo:
		if shared {
			return naming{mark: "__rlock__", hex: true}, nil
		}
		return naming{mark: "__lock__", hex: true}, nil
	}
	return naming{}, fmt.Errorf("%w %q", ErrDialect, dialect)
}

// candidateNaming returns the naming of the candidates of an election.
func candidateNaming(dialect string) (naming, error) {
	if dialect == "" || dialect == Curator {
		return naming{mark: "latch-"}, nil
	}
	return lockNaming(dialect, false, false)
}
