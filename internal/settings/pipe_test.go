package settings

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Whatever stands at a name that the settings read: the load ends with an error.
func TestLoad_NamedPipes(t *testing.T) {
	const block = "template \"x\" {\n  source = \"x.tmpl\"\n  destination = \"/x\"\n}\n"
	for name, text := range map[string]string{
		"zz.hcl": "", "x.tmpl": block,
		"token": "zookeeper {\n  servers = [file(\"token\")]\n}\n",
		"cred":  "zookeeper {\n  servers = [credential(\"cred\")]\n}\n",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "a.hcl"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load([]string{dir}, Options{Env: func(string) (string, bool) { return dir, true }})
		if err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
