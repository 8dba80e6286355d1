package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/zkagent/zkagent/session"
)

// Where recipes stand whose name is not a path.
const (
	locksRoot     = "/zkagent/locks"
	electionsRoot = "/zkagent/elections"
	barriersRoot  = "/zkagent/barriers"
	queuesRoot    = "/zkagent/queues"
	txnsRoot      = "/zkagent/txns"
)

// pathOf is the znode of a name: a path is itself, a name stands below root.
func pathOf(root, name string) (string, error) {
	path := name
	if !strings.HasPrefix(name, "/") {
		path = root + "/" + name
	}
	if err := session.ValidatePath(path); err != nil {
		return "", fail(exitUsage, err)
	}
	return path, nil
}

// contenderData returns the data of our znode in a line: host, process and the
// user's description.
func contenderData(describe string) []byte {
	data := fmt.Appendf(whoAmI(), ":%d", os.Getpid())
	if describe != "" {
		data = append(append(data, ' '), describe...)
	}
	return data
}

// whoAmI returns the data of our znodes, for people who look at them.
func whoAmI() []byte {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return []byte(host)
}
