package docs_test

import (
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"path/filepath"
	"strings"
	"testing"
)

// TestPictures: every picture is small and can be read. scripts/pictures makes them.
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
}
