package settings

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"

	"github.com/zkagent/zkagent/template"
)

// didYouMean is a sentence with the candidate nearest to the text, when one
// is near enough to be meant.
func didYouMean(text string, candidates []string) string {
	if best := template.Nearest(text, candidates); best != "" {
		return " Did you mean " + strconv.Quote(best) + "?"
	}
	return ""
}

// calledHere are names that other programs have for what is called otherwise here.
var calledHere = map[string]string{
	"perms": `mode = "0644"`, "user": "owner", "uid": "owner", "gid": "group", "dest": "destination", "dst": "destination", "src": "source",
	"command": `reload { command = ["...", "..."] }`, "reload_cmd": `reload { command = ["...", "..."] }`, "reload_command": `reload { command = ["...", "..."] }`,
	"check_cmd": `check { command = ["...", staged] }`, "command_timeout": `timeout in the reload block`,
	"left_delimiter": `delimiters = ["[[", "]]"]`, "right_delimiter": `delimiters = ["[[", "]]"]`, "create_dest_dirs": "create_dirs", "make_directories": "create_dirs",
	"ca_cert": "ca_file", "ca": "ca_file", "cert": "cert_file", "key": "key_file", "client_cert": "cert_file", "client_key": "key_file",
	"hosts": "servers", "zk_hosts": "servers", "nodes": "servers", "zk_path": "group", "prefix": "path", "check_interval": "interval in each check block",
	"use_previous_backends": "on_empty", "default_servers": "an {{ else }} in the template",
	"vault": "credential(\"NAME\"), or credential in a template; see docs/secrets.md", "consul": "zookeeper { servers = [...] }",
	"min_reload_interval": "min_interval in the reload block", "deduplicate": "nothing: a watch costs ZooKeeper little",
}

// unexpected are the errors of HCL about a name that it does not know.
var unexpected = regexp.MustCompile(`^(?:An argument named|Blocks of type) "([^"]+)"`)

// explain adds what a name of another program is called here.
func explain(d *hcl.Diagnostic) {
	m := unexpected.FindStringSubmatch(d.Detail)
	if m == nil || strings.Contains(d.Detail, "Did you mean") {
		return
	}
	if to := calledHere[m[1]]; to != "" {
		d.Detail += " Here it is " + to + "."
	}
}

// quoted lists the words in quotes.
func quoted(words []string) string {
	q := make([]string, len(words))
	for i, w := range words {
		q[i] = strconv.Quote(w)
	}
	return strings.Join(q, ", ")
}
