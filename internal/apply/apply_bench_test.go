package apply

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/zkagent/zkagent/template"
	"github.com/zkagent/zkagent/view"
)

// everyKey prints a whole tree.
const everyKey = "{{ range tree \"web\" }}{{ .Key }} = {{ .Value }}\n{{ end }}"

// BenchmarkApply_1000Keys changes one key of 1,000, of which the file shows
// all, and applies it: with the record of written files. In turns with it runs
// the floor, which knows nothing of ZooKeeper: the same text put together from a
// ready list, written, fsync, renamed, fsync of the directory. It
// reports the medians, and what apply adds to them.
func BenchmarkApply_1000Keys(b *testing.B) {
	bed := newApplyBed(b)
	x := bed.bundle(bed.file("ours", everyKey))
	keys := map[string]string{}
	for i := range 1000 {
		keys[fmt.Sprintf("dir%02d/key%04d", i%50, i)] = fmt.Sprintf("value %d", i)
	}
	bed.keys(keys)
	bed.good(x)
	f := newFloor(b, bed.dir, keys)
	var ours, floor []time.Duration
	for i := 0; b.Loop(); i++ {
		value := strconv.Itoa(i)
		tree, _ := bed.view.Tree("web")
		edit := tree.Keys().Edit()
		edit.Set("dir07/key0007", view.Key{Value: []byte(value)})
		bed.view = bed.view.With(view.NewTree(*tree, edit.Done()))
		began := time.Now()
		if r := bed.good(x); r.Changed != 1 {
			b.Fatal("nothing was written")
		}
		ours = append(ours, time.Since(began))
		began = time.Now()
		if err := f.change(value); err != nil {
			b.Fatal(err)
		}
		floor = append(floor, time.Since(began))
	}
	o, m := median(ours), median(floor)
	b.ReportMetric(float64(o.Microseconds()), "apply-µs")
	b.ReportMetric(float64(m.Microseconds()), "floor-µs")
	b.ReportMetric(100*float64(o-m)/float64(m), "%-added")
	b.ReportMetric(0, "ns/op")
}

func median(list []time.Duration) time.Duration {
	slices.Sort(list)
	return list[len(list)/2]
}

// floor is the least that a change of a file can cost.
type floor struct {
	pairs []template.Pair
	dir   string
}

func newFloor(tb testing.TB, dir string, keys map[string]string) *floor {
	tb.Helper()
	f := &floor{dir: dir}
	for k, v := range keys {
		f.pairs = append(f.pairs, template.Pair{Path: "web/" + k, Key: k, Value: v})
	}
	slices.SortFunc(f.pairs, func(a, b template.Pair) int { return bytes.Compare([]byte(a.Key), []byte(b.Key)) })
	return f
}

// change makes the text and replaces the file.
func (f *floor) change(value string) error {
	f.pairs[7].Value = value
	var out bytes.Buffer
	for i := range f.pairs {
		out.WriteString(f.pairs[i].Key)
		out.WriteString(" = ")
		out.WriteString(f.pairs[i].Value)
		out.WriteByte('\n')
	}
	temp := filepath.Join(f.dir, "floor.new")
	file, err := os.Create(temp)
	if err != nil {
		return err
	}
	if _, err = file.Write(out.Bytes()); err == nil {
		err = file.Sync()
	}
	_ = file.Close()
	if err == nil {
		err = os.Rename(temp, filepath.Join(f.dir, "floor"))
	}
	if err != nil {
		return err
	}
	d, err := os.Open(f.dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
