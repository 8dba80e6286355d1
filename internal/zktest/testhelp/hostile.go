package testhelp

import "strings"

// HostileNames are names of znodes that mean something in a file of nginx or HAProxy, in
// a shell, a path, HTML or a URL, or that a reader of ZooKeeper may take for its own.
var HostileNames = []string{
	"x;}", "-rf", "`id`", "$(id)", "a\u202eb", `a"b`, "a'b", "a b", "{{ . }}", "<b>", "..x", ".htaccess", "%3A%2F%2F", "%00", "a=b", "~x", "ready", "versions", "objects", "rollouts",
	"0000000001", "v1", "m_0000000009", "_c_00000000-0000-0000-0000-000000000000-latch-0000000000", "vector_0000000001", "aaaa", strings.Repeat("n", 3000),
	strings.Repeat("x;}", 100_000), "10.0.0.9:80", "\u2028", strings.Repeat("..", 32), "a\u200b\ufeff", "\U000e0041",
}

// HostileData is data that does the same, or that looks like a record of one of the
// formats.
var HostileData = []string{
	"", "x;\n}\nserver { root /; }", "\x1b[2J", "`id`", "$(id)\u202e", "-rf", "\xff\xfe\x00", "{", "[]", "null", strings.Repeat("[", 5000), strings.Repeat(`{"a":`, 5000),
	`{"host":"h","port":80,"name":"x;}","labels":{"a;b":"c\"d"}}`, `{"host":"10.0.0.9","port":80,"name":"a","labels":{"zone":"x;}"}}`, `{"host":"$(id)","port":80}`,
	`{"host":"10.0.0.9","port":99999999999999999999}`, `{"version":-1}`, `{"version":9223372036854775807,"keys":{"../x":"y"}}`, "9223372036854775807", "-1", "0000000009",
	`{"serviceEndpoint":{"host":"h;","port":1},"status":"ALIVE"}`, `{"name":"a","id":"-rf","address":"h","port":1}`, "10.0.0.9:80", "h:80\n}",
	`{"host":"10.0.0.9","port":80,"host":"x;}","PORT":1,"port":81}`, `{"host":"10.0.0.9","port":1e400}`, `{"host":"10.0.0.9","port":8.5,"weight":-1e18,"labels":{"a":{"b":[1]}}}`,
	"\r\n\r\nHTTP/1.1 200 OK\r\n", "\ufeff{}", `{"host":"10.0.0.9","port":80,"labels":{` + strings.Repeat(`"l":"v",`, 20_000) + `"z":"` + strings.Repeat("\\u001b", 20_000) + `"}}`,
	`{"since":"99999-99-99T99:99:99Z","at":"0001-01-01T00:00:00Z","health":7,"configs":[],"faults":{"a":1}}`, strings.Repeat("\x1b[2J\n", 30_000), `{"number":-9223372036854775808,"host":"\ud800"}`,
}
