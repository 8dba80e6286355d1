package main

import (
	"os"
	"strings"
	"testing"
)

// TestVersion: the version that is being worked on stands in one file.
func TestVersion(t *testing.T) {
	data, err := os.ReadFile("../../VERSION")
	if err != nil || strings.TrimSpace(string(data)) != next {
		t.Errorf("VERSION has %q, the program %q, %v", data, next, err)
	}
	if v := buildVersion(); !strings.HasPrefix(v, next) {
		t.Errorf("this build is %s, want one of %s", v, next)
	}
}
