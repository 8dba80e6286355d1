package term

import (
	"io"
	"os"
	"regexp"
	"strings"
)

// Guard returns a stream for text that others may have written. A terminal gets
// line ends, tabs, colours and printable text from it, and everything else
// escaped. What is no terminal is returned as it is.
func Guard(w io.Writer) io.Writer {
	if f, ok := w.(*os.File); ok && IsTerminal(f) {
		return guarded{f}
	}
	return w
}

type guarded struct{ file *os.File }

// colours are the sequences that a guard lets through: they change how a word
// looks, and nothing else.
var colours = regexp.MustCompile("\x1b\\[[0-9;]*m")

func (g guarded) Write(p []byte) (int, error) {
	var b strings.Builder
	text, from := string(p), 0
	for _, at := range colours.FindAllStringIndex(text, -1) {
		b.WriteString(Escape(text[from:at[0]]) + text[at[0]:at[1]])
		from = at[1]
	}
	b.WriteString(Escape(text[from:]))
	if _, err := io.WriteString(g.file, b.String()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// File returns the file that a stream writes to, for a child process, and for
// the controls of a terminal that are our own.
func File(stream any) (*os.File, bool) {
	if g, ok := stream.(guarded); ok {
		return g.file, true
	}
	f, ok := stream.(*os.File)
	return f, ok
}

// Unguarded is the stream without its guard.
func Unguarded(w io.Writer) io.Writer {
	if f, ok := File(w); ok {
		return f
	}
	return w
}
