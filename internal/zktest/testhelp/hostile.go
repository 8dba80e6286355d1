package testhelp

import "strings"

// HostileNames are names of znodes that mean something in a file of nginx or HAProxy, in
// a shell, a path, HTML or a URL, or that a reader of ZooKeeper may take for its own.
var HostileNames = []string{
	"x;}", "-rf", "`id`", "$(id)", "a\u202eb", `a"b`, "a'b", "a b", "{{ . }}", "<b>", "..x", ".htaccess", "%3A%2F%2F", "%00", "a=b", "~x", "ready", "versions", "objects", "rollouts",
	"0000000001", "v1", "m_0000000009", "_c_00000000-0000-0000-0000-000000000000-latch-0000000000", "vector_0000000001", "aaaa", strings.Repeat("n", 3000),
}

// HostileData is data that does the same, or that looks like a record of one of the
// formats.
var HostileData = []string{
	"", "x;\n}\nserver { root /; }", "\x1b[2J", "`id`", "$(id)\u202e", "-rf", "\xff\xfe\x00", "{", "[]", "null", strings.Repeat("[", 5000), strings.Repeat(`{"a":`, 5000),
	`{"host":"h","port":80,"name":"x;}","labels":{"a;b":"c\"d"}}`, `{"host":"10.0.0.9","port":80,"name":"a","labels":{"zone":"x;}"}}`, `{"host":"$(id)","port":80}`,
	`{"host":"10.0.0.9","port":99999999999999999999}`, `{"version":-1}`, `{"version":9223372036854775807,"keys":{"../x":"y"}}`, "9223372036854775807", "-1", "0000000009",
	`{"serviceEndpoint":{"host":"h;","port":1},"status":"ALIVE"}`, `{"name":"a","id":"-rf","address":"h","port":1}`, "10.0.0.9:80", "h:80\n}",
}
