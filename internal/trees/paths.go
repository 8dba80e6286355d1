package trees

import (
	"fmt"

	"github.com/zkagent/zkagent/session"
)

// ReadyPath is the znode that names the version in use.
func ReadyPath(root string) string { return session.JoinPath(root, ElemReady) }

// VersionsPath is where the versions of a tree are.
func VersionsPath(root string) string { return root + "/" + ElemVersions }

// VersionPath is the znode of a version.
func VersionPath(root string, n int64) string { return VersionsPath(root) + fmt.Sprintf("/%010d", n) }

// ObjectsPath is where the contents of versions are.
func ObjectsPath(root string) string { return root + "/" + elemObjects }

// RolloutsPath is where the rollouts of a tree are.
func RolloutsPath(root string) string { return session.JoinPath(root, elemRollouts) }

// FreezePath exists while the tree is frozen.
func FreezePath(root string) string { return root + "/" + ElemFreeze }
