package docs_test

import (
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var title = regexp.MustCompile(`<text class="h"[^>]*>\d+\. ([^<]*)</text>`)

// TestPictures: the cast of the demo shows the story that the program shows now,
// and every picture is small and can be read. scripts/pictures makes them.
func TestPictures(t *testing.T) {
	files, err := filepath.Glob("images/*")
	if err != nil || len(files) < 3 {
		t.Fatalf("pictures: %q, %v", files, err)
	}
	for _, file := range files {
		data := read(t, file)
		if len(data) > 64<<10 {
			t.Errorf("%s: %d bytes", file, len(data))
		}
		switch filepath.Ext(file) {
		case ".svg":
			for d := xml.NewDecoder(strings.NewReader(data)); ; {
				if _, err := d.Token(); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatalf("%s: %v", file, err)
				}
			}
		case ".png":
			if _, err := png.Decode(strings.NewReader(data)); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		default:
			t.Errorf("%s: what is it?", file)
		}
	}
	story, err := os.ReadFile("../internal/dev/story.go")
	if err != nil {
		t.Fatal(err)
	}
	titles := title.FindAllStringSubmatch(read(t, "images/demo.svg"), -1)
	if len(titles) < 5 {
		t.Errorf("demo.svg shows %d steps of the story", len(titles))
	}
	for _, m := range titles {
		step := strings.NewReplacer("&amp;", "&", "&lt;", "<", "&gt;", ">").Replace(m[1])
		if !strings.Contains(string(story), step) {
			t.Errorf("demo.svg has the step %q, which the program does not show: run scripts/pictures", m[1])
		}
	}
}
