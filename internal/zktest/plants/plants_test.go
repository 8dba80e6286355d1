package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// files are a small module with faults, in the places where ours are.
var files = map[string]string{
	"go.mod":             "module example.com/m\n\ngo 1.24\n",
	"config/a.go":        "package config\n",
	"config/a_test.go":   "package config\n",
	"fleet/a.go":         "package fleet\n\nconst step = 1\n\ntype T struct{ n int }\n\nfunc (t *T) Add() {\n\tt.n += step\n}\n\nfunc Two() int {\n\treturn 2\n}\n",
	"fleet/a_test.go":    "package fleet\n\nimport \"testing\"\n\nfunc TestAdd(t *testing.T) {\n\tvar v T\n\tif v.Add(); v.n != 1 {\n\t\tt.Error(v)\n\t}\n}\n\nfunc TestTwo(t *testing.T) {\n\tif Two() != 2 {\n\t\tt.Error()\n\t}\n}\n",
	"adds-nothing.patch": patch("adds nothing", "TestAdd", 6, "\n func (t *T) Add() {\n-\tt.n += step\n+\tt.n += 0\n }\n"),
	"adds-two.patch":     patch("adds two", "TestTwo, TestAdd", 6, "\n func (t *T) Add() {\n-\tt.n += step\n+\tt.n += 2\n }\n"),
	"three.patch":        patch("three", "TestTwo$", 10, "\n func Two() int {\n-\treturn 2\n+\treturn 3\n }\n"),
	"text.patch":         patch("text", "TestTwo", 10, "\n func Two() int {\n-\treturn 2\n+\treturn \"2\"\n }\n"),
	"constant.patch":     patch("constant", "TestAdd", 2, "\n-const step = 1\n+const step = 2\n \n type T struct{ n int }\n"),
	"elsewhere.patch":    patch("elsewhere", "TestAdd", 2, "\n-const step = 7\n+const step = 2\n \n type T struct{ n int }\n"),
}

func patch(name, tests string, line int, hunk string) string {
	at := string(rune('0'+line/10)) + string(rune('0'+line%10))
	return "Fault: " + name + "\nFound by: " + tests + "\n\n--- a/fleet/a.go\n+++ b/fleet/a.go\n@@ -" + at + ",4 +" + at + ",4 @@\n " + strings.TrimPrefix(hunk, " ")
}

// TestIsToday: in a week, random programs search once for each fault.
func TestIsToday(t *testing.T) {
	t.Parallel()
	for fault := range 10 {
		seeds, directed := 0, 0
		for day := range 7 {
			now := time.Date(2026, 11, 20+day, 12, 0, 0, 0, time.UTC)
			if isToday("TestSeeds", fault, now) {
				seeds++
			}
			if isToday("TestDry_", fault, now) {
				directed++
			}
		}
		if seeds != 1 || directed != 7 {
			t.Errorf("fault %d: %d days with random programs, %d with other tests, want 1 and 7", fault, seeds, directed)
		}
	}
}

// TestPlant: each fault happens alone, and each test that its patch names must find it.
func TestPlant(t *testing.T) {
	testhelp.OnlyAll(t, "it builds test programs")
	t.Chdir(t.TempDir())
	for name, text := range files {
		if strings.HasSuffix(name, ".patch") {
			name = filepath.Join("fleet", "testdata", "plants", name)
		}
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	missed, err := plant(t.Context(), &run{out: &out}, "")
	if err != nil || !missed {
		t.Errorf("got %v, %v, want a missed fault", missed, err)
	}
	for _, want := range []string{
		"found: adds nothing: --- FAIL: TestAdd,",
		"found: adds two: --- FAIL: TestAdd,",
		"MISSED: adds two: TestTwo\n",
		"found: three: --- FAIL: TestTwo,",
		"STALE: text: it does not compile: ",
		"STALE: constant: it changes more than the bodies of functions\n",
		"STALE: elsewhere: it does not apply\n",
		"== faults: 3 found, 1 missed, 3 stale, in ",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, out.String())
		}
	}
}
