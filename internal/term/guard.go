package term

import (
	"crypto/rand"
	"io"
	"os"
	"regexp"
	"strings"
)

// Guard returns a stream for text that others may have written. A terminal gets
// line ends, tabs, our own colours and printable text from it, and everything else
// escaped. What is no terminal is returned as it is.
func Guard(w io.Writer) io.Writer {
	if f, ok := w.(*os.File); ok && IsTerminal(f) {
		return guarded{f}
	}
	return w
}

type guarded struct{ file *os.File }

// secret begins our own colours on a guarded stream. Nobody who writes into
// ZooKeeper knows it, so nobody can hide a word or paint it like one of ours.
var secret = "\x1b\x00" + rand.Text() + "["

// colours are the sequences that a guard lets through.
var colours = regexp.MustCompile(regexp.QuoteMeta(secret) + "[0-9;]*m")

// paint is what begins a colour on the stream.
func paint(w io.Writer) string {
	if _, ok := w.(guarded); ok {
		return secret
	}
	return "\x1b["
}

func (g guarded) Write(p []byte) (int, error) {
	var b strings.Builder
	text, from := string(p), 0
	for _, at := range colours.FindAllStringIndex(text, -1) {
		b.WriteString(Escape(text[from:at[0]]) + "\x1b[" + text[at[0]+len(secret):at[1]])
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
