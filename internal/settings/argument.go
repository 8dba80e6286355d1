package settings

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"

	"github.com/zkagent/zkagent/internal/dns"
	"github.com/zkagent/zkagent/internal/hook"
	"github.com/zkagent/zkagent/internal/pace"
	"github.com/zkagent/zkagent/session"
)

// written is what is known of an argument beside its value.
type written struct {
	Set  bool      // it stands in the block, and is not null
	At   hcl.Range // its value; the block, when it is not set
	Name string
}

// expression is an argument that is evaluated later, such as a reference or a command.
type expression struct {
	hcl.Expression // nil when it is not set

	written
}

// rule is what the name and the tag of an argument say:
//
//	name,optional        its name; without ",optional" it is required
//	is:"duration"        what it is, for the reference
//	default:"10s"        what it is when it is absent
//	min:"1s" max:"1h"    its limits, in its own notation
//	enum:"a|b"           its allowed values
//	check:"id"           the form of a text, by its name in forms; the default is that of "is"
//	doc:"..."            what it means, for the reference
type rule struct {
	name     string
	required bool
	is       string
	def      string
	min, max string
	enum     []string
	check    string
	doc      string
	common   bool // it is an argument of every kind of the block
}

// forms are the texts that must not be empty and have a form.
var forms = map[string]struct {
	summary string // of the error
	check   func(string) error
}{
	"nonempty":           {},
	"secret":             {},
	"path":               {"Invalid path", checkFileName},
	"znode path":         {"Invalid znode path", checkZnode},
	"znode path or list": {"Invalid znode path", checkZnode},
	"url":                {"Invalid URL", checkURL},
	"host":               {"Invalid address", checkHost},
	"address":            {"Invalid address", checkHostPort},
	"listen":             {"Invalid address", checkListen},
	"signal":             {"Unknown signal", checkSignal},
	"id":                 {"Invalid agent id", checkID},
	"domain":             {"Invalid domain", checkDomain},
	"permits":            {"Invalid permits", func(text string) error { _, err := pace.ParseShare(text); return err }},
	"schedule":           {"Invalid schedule", func(line string) error { _, err := hook.ParseSchedule(line, "check"); return err }},
}

// reader reads one argument under its rule, and reports what is wrong with it.
type reader struct {
	rule
	written

	s *Settings
	v cty.Value // cty.NilVal when there is none
}

// evaluate evaluates an expression of the settings, and reports what is wrong with it.
func (s *Settings) evaluate(expr hcl.Expression, ctx *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	v, diags := expr.Value(ctx)
	s.add(diags...)
	for _, text := range s.missing {
		s.warnAt(expr.Range(), "Credential missing on this host", "%s", text)
	}
	s.missing = nil
	return v, diags
}

// value converts the value to the wanted type. The second result is false when it
// is absent or wrong; what is wrong is reported.
func (r *reader) value(want cty.Type) (cty.Value, bool) {
	if r.v == cty.NilVal {
		return cty.NilVal, false
	}
	c, err := convert.Convert(r.v, want)
	if err != nil || !c.IsWhollyKnown() {
		r.s.errorAt(r.At, "Incorrect value type", "%q must be %s.", r.name, typeName(want))
		return cty.NilVal, false
	}
	return c, true
}

func typeName(want cty.Type) string {
	switch {
	case want == cty.Bool:
		return "true or false"
	case want == cty.Number:
		return "a number"
	case want.IsListType():
		return "a list of strings"
	case want.IsMapType():
		return "a map of strings"
	}
	return "a string"
}

// text reads a string, and checks its form and its enum. A file is relative to the
// directory of the settings file.
func (d *decoder) text(name string, tag reflect.StructTag) string {
	r := d.reader(name, tag)
	v, ok := r.value(cty.String)
	if !ok {
		return r.def
	}
	text := v.AsString()
	if len(r.enum) > 0 && !slices.Contains(r.enum, text) {
		r.s.errorAt(r.At, "Unknown value", "%q must be one of %s, not %q.%s", r.name, quoted(r.enum), text, didYouMean(text, r.enum))
		return r.def
	}
	form, ok := forms[r.check]
	if !ok {
		return text
	}
	if text == "" {
		r.s.errorAt(r.At, "Empty value", "%q must not be empty.", r.name)
		return ""
	}
	if form.check != nil {
		if err := form.check(text); err != nil {
			r.s.errorAt(r.At, form.summary, "%s: %v.", r.name, err)
			return r.def
		}
	}
	if r.check == "path" {
		return relative(r.At, text)
	}
	return text
}

func checkFileName(path string) error {
	if strings.ContainsRune(path, 0) {
		return fmt.Errorf("%q has a NUL byte", path)
	}
	return nil
}

// relative resolves a path against the directory of the file of the range.
func relative(at hcl.Range, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	path = filepath.Join(filepath.Dir(at.Filename), path)
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// limited reads a string or a number that has limits.
func limited[T ~int | ~int64 | ~uint32 | ~float64](
	d *decoder, name string, tag reflect.StructTag, want cty.Type, summary string, parse func(string) (T, error),
) T {
	r := d.reader(name, tag)
	def := must(parse, r.def)
	v, ok := r.value(want)
	if !ok {
		return def
	}
	v, _ = convert.Convert(v, cty.String) // A number, too, has a text.
	got, err := parse(v.AsString())
	switch {
	case err != nil:
		r.s.errorAt(r.At, summary, "%s: %v.", r.name, err)
	case r.min != "" && got < must(parse, r.min):
		r.s.errorAt(r.At, summary, "%s: %s is less than the least allowed, %s.", r.name, v.AsString(), r.min)
	case r.max != "" && got > must(parse, r.max):
		r.s.errorAt(r.At, summary, "%s: %s is more than the most allowed, %s.", r.name, v.AsString(), r.max)
	default:
		return got
	}
	return def
}

// must parses the text of a tag; empty is the zero value.
func must[T any](parse func(string) (T, error), text string) T {
	var zero T
	if text == "" {
		return zero
	}
	v, err := parse(text)
	if err != nil {
		panic(fmt.Sprintf("settings: bad tag: %v", err))
	}
	return v
}

func wholeNumber(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("%q is not a whole number", text)
	}
	return n, nil
}

func (d *decoder) boolean(name string, tag reflect.StructTag) bool {
	r := d.reader(name, tag)
	v, ok := r.value(cty.Bool)
	if !ok {
		return r.def == "true"
	}
	return v.True()
}

// list reads a list of strings; a null among them is an error.
func (d *decoder) list(name string, tag reflect.StructTag) []string {
	r := d.reader(name, tag)
	form, formed := forms[r.check]
	if formed && r.v != cty.NilVal && r.v.Type() == cty.String {
		r.v = cty.ListVal([]cty.Value{r.v}) // one may stand without brackets
	}
	v, ok := r.value(cty.List(cty.String))
	if !ok {
		return nil
	}
	if formed && v.LengthInt() == 0 {
		r.s.errorAt(r.At, "Empty value", "%q must not be empty.", r.name)
	}
	list := make([]string, 0, v.LengthInt())
	for _, e := range v.AsValueSlice() {
		switch {
		case e.IsNull():
			r.s.errorAt(r.At, "Incorrect value type", "%q has an element that is null.", r.name)
		case len(r.enum) > 0 && !slices.Contains(r.enum, e.AsString()):
			r.s.errorAt(r.At, "Unknown value", "The elements of %q must be among %s, not %q.%s",
				r.name, quoted(r.enum), e.AsString(), didYouMean(e.AsString(), r.enum))
		default:
			if list = append(list, e.AsString()); formed {
				if err := form.check(e.AsString()); err != nil {
					r.s.errorAt(r.At, form.summary, "%s: %v.", r.name, err)
				}
			}
		}
	}
	return list
}

func parsed[T any](d *decoder, name string, tag reflect.StructTag, summary string, parse func(string) (T, error)) []T {
	var list []T
	texts := d.list(name, tag)
	for _, text := range texts {
		v, err := parse(text)
		if err != nil {
			name, _, _ = strings.Cut(name, ",")
			d.s.errorAt(d.place(name), summary, "%v.", err)
			continue
		}
		list = append(list, v)
	}
	return list
}

func (d *decoder) textMap(name string, tag reflect.StructTag) map[string]string {
	v, ok := d.reader(name, tag).value(cty.Map(cty.String))
	if !ok {
		return nil
	}
	m := map[string]string{}
	for k, e := range v.AsValueMap() {
		if !e.IsNull() {
			m[k] = e.AsString()
		}
	}
	return m
}

// parseDuration parses a duration such as "10s", "1h30m" or "2d". A number
// without a unit is refused: readers disagree on which one is meant.
func parseDuration(text string) (time.Duration, error) {
	text = strings.TrimSpace(text)
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseFloat(days, 64); err == nil && !math.IsNaN(n) && math.Abs(n) < 36500 {
			return time.Duration(n * 24 * float64(time.Hour)), nil
		}
	} else if d, err := time.ParseDuration(text); err == nil {
		return d, nil
	} else if _, err := strconv.ParseFloat(text, 64); err == nil {
		return 0, fmt.Errorf("%q has no unit; write \"%ss\" for seconds", text, text)
	}
	return 0, fmt.Errorf("%q is not a duration; write it as in \"500ms\", \"10s\", \"5m\", \"2h\" or \"1d\"", text)
}

// sizeUnits are the units of sizes: powers of 1024, with or without the "i".
var sizeUnits = map[string]int64{
	"": 1, "b": 1,
	"k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10,
	"m": 1 << 20, "mb": 1 << 20, "mib": 1 << 20,
	"g": 1 << 30, "gb": 1 << 30, "gib": 1 << 30,
}

// parseSize parses a size in bytes such as "512", "64k", "1MiB".
func parseSize(text string) (int64, error) {
	trimmed := strings.ToLower(strings.TrimSpace(text))
	unit := strings.TrimLeft(trimmed, "0123456789")
	factor, known := sizeUnits[strings.TrimSpace(unit)]
	n, err := strconv.ParseInt(strings.TrimSuffix(trimmed, unit), 10, 64)
	if err != nil || !known || n > math.MaxInt64/factor {
		return 0, fmt.Errorf("%q is not a size; write it as in \"512kB\", \"1MB\" or \"1MiB\"", text)
	}
	return n * factor, nil
}

// parseMode parses an octal file mode such as "0644".
func parseMode(text string) (fs.FileMode, error) {
	n, err := strconv.ParseUint(strings.TrimPrefix(text, "0o"), 8, 32)
	if err != nil || n > 0o7777 {
		return 0, fmt.Errorf("%q is not a file mode; write it in octal as in \"0644\"", text)
	}
	if n > 0o777 {
		return 0, fmt.Errorf("%q sets the setuid, setgid or sticky bit; only the permission bits may be set", text)
	}
	return fs.FileMode(n), nil
}

// parsePercent parses a share such as "30%" and returns it as 0.3.
func parsePercent(text string) (float64, error) {
	number, ok := strings.CutSuffix(strings.TrimSpace(text), "%")
	if !ok {
		return 0, fmt.Errorf("%q is not a share; write it as in \"30%%\"", text)
	}
	n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || math.IsNaN(n) || n < 0 || n > 100 {
		return 0, fmt.Errorf("%q is not a share from 0%% to 100%%", text)
	}
	return n / 100, nil
}

func checkZnode(path string) error {
	if err := session.ValidatePath(path); err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), session.ErrBadPath.Error()+": "))
	}
	return nil
}

func checkPort(text string, least int) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > 65535 {
		return fmt.Errorf("%q is not a port from %d to 65535", text, max(least, 1))
	}
	return nil
}

func checkHost(host string) error {
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return nil
	}
	if len(host) > 253 || slices.ContainsFunc(strings.Split(strings.TrimSuffix(host, "."), "."), func(label string) bool { return !dns.IsLabel(label) }) {
		return fmt.Errorf("%q is not a host name or an IP address: a name has labels of 1 to 63 letters, digits, - and _, which do not begin or end with -", host)
	}
	return nil
}

func checkHostPort(text string) error {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return fmt.Errorf("%q is not an address; write it as in \"127.0.0.1:8080\" or \"[::1]:8080\"", text)
	}
	if err := checkHost(host); err != nil {
		return err
	}
	return checkPort(port, 1)
}

// checkServer checks a server of the ensemble; the port may be absent.
func checkServer(text string) error {
	if strings.Contains(text, "/") {
		return fmt.Errorf("%q has a slash; write the chroot in the argument chroot", text)
	}
	if strings.Contains(text, ",") {
		return fmt.Errorf("%q has a comma; write one server an element", text)
	}
	if _, _, err := net.SplitHostPort(text); err != nil {
		return checkHost(text)
	}
	return checkHostPort(text)
}

func checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return fmt.Errorf("%q is not a URL", text)
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("%q must begin with http:// or https://", text)
	case u.Host == "":
		return fmt.Errorf("%q has no host", text)
	}
	return checkHost(u.Hostname())
}
