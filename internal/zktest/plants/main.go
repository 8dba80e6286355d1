// Package main builds the program with faults in it, and looks that the tests find them.
//
// Each patch in testdata/plants of fleet and registry is one fault in the bodies of
// functions. Its header names the fault, and the tests that find it. All faults of a
// package are built into one test program, as branches at the beginning of their
// functions. An environment variable selects the fault that happens. So a fault costs
// only the time of its test.
//
//	go run ./internal/zktest/plants [-quick] [-share] [REGEXP]
//
// -quick runs the tests as `make test` runs them. Without it, a suite of random programs
// runs up to 300 of them. With -share these suites search for a seventh of the faults only,
// for all of them in a week. REGEXP selects faults by their names. The exit status is 1 when
// a test misses its fault. A patch that no longer applies or compiles is reported and
// does not fail: write it anew, or delete it.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// searched are the packages that have the tests, by the package that has the patch.
var searched = map[string][]string{
	"fleet":    {"fleet", "config"},
	"registry": {"registry"},
}

// run is one run of this command.
type run struct {
	quick bool
	share bool
	out   io.Writer
	dir   string            // for the overlay and the test programs
	tests map[string]string // the source of the tests of each package

	mu     sync.Mutex // guards what follows
	counts map[string]int
}

func main() {
	quick := flag.Bool("quick", false, "run the tests as make test runs them")
	share := flag.Bool("share", false, "run suites of random programs for a seventh of the faults, for others each day")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	missed, err := plant(ctx, &run{quick: *quick, share: *share, out: os.Stdout}, flag.Arg(0))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "plants:", err)
	}
	if err != nil || missed {
		os.Exit(1)
	}
}

// plant runs everything, and reports whether a fault was missed.
func plant(ctx context.Context, r *run, pattern string) (bool, error) {
	wanted, err := regexp.Compile(pattern)
	if err != nil {
		return false, fmt.Errorf("the faults to plant: %w", err)
	}
	dir, err := os.MkdirTemp("", "plants-")
	if err != nil {
		return false, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	r.dir, r.tests, r.counts = dir, map[string]string{}, map[string]int{}
	began := time.Now()
	for _, home := range []string{"fleet", "registry"} {
		if err := r.plantAll(ctx, home, wanted); err != nil {
			return false, err
		}
	}
	_, _ = fmt.Fprintf(r.out, "== faults: %d found, %d missed, %d stale, in %.0f s\n", r.counts["found"], r.counts["MISSED"], r.counts["STALE"], time.Since(began).Seconds())
	return r.counts["MISSED"] > 0, nil
}

// plantAll plants the faults of one package.
func (r *run) plantAll(ctx context.Context, home string, wanted *regexp.Regexp) error {
	files, err := filepath.Glob(filepath.Join(home, "testdata", "plants", "*.patch"))
	if err != nil {
		return err
	}
	var faults []*fault
	for _, file := range files {
		f, err := readFault(ctx, file)
		switch {
		case f != nil && !wanted.MatchString(f.name):
		case err != nil:
			r.report("STALE", f.name, err.Error())
		default:
			faults = append(faults, f)
		}
	}
	if len(faults) == 0 {
		return nil
	}
	if faults, err = r.build(ctx, home, faults); err != nil {
		return err
	}
	each, ctx := errgroup.WithContext(ctx)
	each.SetLimit(runtime.GOMAXPROCS(0))
	for i, f := range faults {
		for _, tests := range f.foundBy {
			if r.share && !isToday(tests, i, time.Now()) {
				continue
			}
			each.Go(func() error { return r.find(ctx, home, f, tests) })
		}
	}
	return each.Wait()
}

// isToday reports whether tests search for the fault with a number on this day: each day,
// but suites of random programs one day of seven.
func isToday(tests string, fault int, now time.Time) bool {
	random := strings.HasSuffix(tests, "Seeds") || tests == "TestWorld"
	return !random || (int64(fault)+now.Unix()/(24*60*60))%7 == 0
}

// build builds the test programs. It reports faults that do not compile, and returns the
// others.
func (r *run) build(ctx context.Context, home string, faults []*fault) ([]*fault, error) {
	for {
		overlay, err := writeOverlay(r.dir, faults)
		if err != nil {
			return nil, err
		}
		var out []byte
		for _, pkg := range searched[home] {
			build := exec.CommandContext(ctx, goCommand(), "test", "-c", "-ldflags=-s -w", "-gcflags=-l -e", "-overlay", overlay, "-o", r.program(pkg), "./"+pkg) //nolint:gosec // our own packages
			if out, err = build.CombinedOutput(); err != nil {
				break
			}
		}
		if err == nil {
			return faults, nil
		}
		var good []*fault
		for _, f := range faults {
			if at := strings.Index(string(out), f.file); at >= 0 {
				line, _, _ := strings.Cut(string(out[at:]), "\n")
				r.report("STALE", f.name, "it does not compile: "+line)
				continue
			}
			good = append(good, f)
		}
		if len(good) == len(faults) || len(good) == 0 {
			return nil, fmt.Errorf("build %s: %w\n%s", home, err, out)
		}
		faults = good
	}
}

func (r *run) program(pkg string) string { return filepath.Join(r.dir, pkg+".test") }

// goCommand is $GO, as in the Makefile.
func goCommand() string {
	if path := os.Getenv("GO"); path != "" {
		return path
	}
	return "go"
}

var failure = regexp.MustCompile(`(?m)--- FAIL: \S+|^panic: .*|^fatal error: .*`)

// find runs the tests with one fault, and reports whether one of them fails.
func (r *run) find(ctx context.Context, home string, f *fault, tests string) error {
	for _, pkg := range searched[home] {
		has, err := r.hasTest(pkg, tests)
		if err != nil {
			return err
		}
		if !has {
			continue
		}
		began := time.Now()
		test := exec.CommandContext(ctx, r.program(pkg), "-test.run", "^("+tests+")", "-test.failfast", "-test.cpu", "1", "-test.timeout", "20m") //nolint:gosec // our own test
		test.Dir, test.Env = pkg, append(os.Environ(), plantVariable+"="+f.file)
		switch {
		case r.quick:
		case home == "registry": // Its programs are long: a quick run of them is enough.
			test.Env = append(test.Env, "SEED=1-60")
		default:
			test.Env = append(test.Env, "TEST_ALL=1", "STEPS=1", "SEED=1-300")
		}
		out, err := test.CombinedOutput()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if found := failure.FindString(string(out)); err != nil && !strings.HasPrefix(found, "panic: test timed out") {
			r.report("found", f.name, fmt.Sprintf("%s, %.1f s", found, time.Since(began).Seconds()))
			return nil
		}
	}
	r.report("MISSED", f.name, tests)
	return nil
}

// hasTest reports whether a package has a test that the expression matches.
func (r *run) hasTest(pkg, tests string) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tests[pkg] == "" {
		files, err := filepath.Glob(filepath.Join(pkg, "*_test.go"))
		if err != nil {
			return false, err
		}
		for _, file := range files {
			text, err := os.ReadFile(file) //nolint:gosec // our own source
			if err != nil {
				return false, err
			}
			r.tests[pkg] += string(text)
		}
	}
	return regexp.MatchString(`(?m)^func (`+strings.ReplaceAll(tests, "$", `\(`)+`)`, r.tests[pkg])
}

func (r *run) report(verdict, name, details string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[verdict]++
	_, _ = fmt.Fprintf(r.out, "%s: %s: %s\n", verdict, name, details)
}
