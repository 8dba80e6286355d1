// Command zkbench measures zkagent beside its floors on a real ZooKeeper of its
// own, and prints a table. Flags: -quick, -only, -json, -svg, -benchstat,
// -baseline, -model, -cpuprofile, and -compare A.json B.json, which reports whether two runs have
// the same verdict.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"strings"

	"github.com/zkagent/zkagent/bench"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	child, err := bench.Coordinate(ctx)
	if !child {
		err = run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "zkbench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	fs := flag.NewFlagSet("zkbench", flag.ContinueOnError)
	quick := fs.Bool("quick", false, "small sizes and few repetitions")
	only := fs.String("only", "", "cases to run, comma separated")
	jsonTo := fs.String("json", "../bin/bench.json", "write the report as JSON here; empty: nowhere")
	svgTo := fs.String("svg", "../bin/bench.svg", "write the picture here; empty: nowhere")
	statTo := fs.String("benchstat", "", "write the report for benchstat here")
	baseline := fs.String("baseline", "baseline.json", "print what is worse than in this report; empty: compare with nothing")
	model := fs.Bool("model", false, "print the model of docs/scale.md and measure nothing")
	profile := fs.String("cpuprofile", "", "write a profile of this process here")
	agree := fs.Bool("compare", false, "measure nothing; report whether the two named reports have the same verdict, and fail when a limit is met in one and missed in the other")
	if err := fs.Parse(args); err != nil {
		return err
	}
	switch {
	case *model:
		return bench.Model(out)
	case *agree:
		return agreement(fs.Args(), out)
	case fs.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	cfg := bench.Config{Quick: *quick, Log: func(s string) { _, _ = fmt.Fprintln(progress, "measuring", s) }}
	if *only != "" {
		cfg.Only = strings.Split(*only, ",")
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer func() { pprof.StopCPUProfile(); _ = f.Close() }()
	}
	r, err := bench.Run(ctx, cfg)
	if err != nil {
		return err
	}
	for path, write := range map[string]func(io.Writer) error{*jsonTo: r.JSON, *svgTo: r.SVG, *statTo: r.Benchstat} {
		if err := writeFile(path, write); err != nil {
			return err
		}
	}
	if err := r.Table(out); err != nil {
		return err
	}
	return compare(r, *baseline, out)
}

// writeFile writes to a path, nothing for none.
func writeFile(path string, write func(io.Writer) error) error {
	if path == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	f, err := os.Create(path) //nolint:gosec // The user names it.
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// compare prints the cases that kept their limit in the baseline and do not now. They are
// no failure: times differ between machines, and tests guard the counts.
func compare(r bench.Report, path string, out io.Writer) error {
	if path == "" {
		return nil
	}
	former, err := readReport(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, line := range r.Against(former) {
		_, _ = fmt.Fprintln(out, "over its limit, and was not in", path+":", line)
	}
	return nil
}

// agreement reports whether two runs have the same verdict.
func agreement(paths []string, out io.Writer) error {
	if len(paths) != 2 {
		return errors.New("-compare takes the JSON of two runs")
	}
	a, err := readReport(paths[0])
	if err != nil {
		return err
	}
	b, err := readReport(paths[1])
	if err != nil {
		return err
	}
	g := bench.Agree(a, b)
	return errors.Join(g.Write(out), g.Err())
}

func readReport(path string) (bench.Report, error) {
	var r bench.Report
	data, err := os.ReadFile(path) //nolint:gosec // The user names it.
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}
