// Package quickstart holds the files of this example, so that "zkagent dev"
// has something to show where there is no copy of it.
package quickstart

import "embed"

// Files are the settings, the template, and what is in ZooKeeper before and
// after the change that "zkagent dev --story" publishes.
//
//go:embed zkagent.hcl upstreams.conf.tmpl seed change
var Files embed.FS
