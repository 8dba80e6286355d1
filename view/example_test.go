package view_test

import (
	"fmt"

	"github.com/zkagent/zkagent/view"
)

// Keys never change: an edit gives other ones, and shares what is equal.
func ExampleKeys() {
	before := view.KeysOf(map[string][]byte{"color": []byte("green"), "size": []byte("7")})
	edit := before.Edit()
	edit.Set("color", view.Key{Value: []byte("blue")})
	edit.Delete("size")
	after := edit.Done()
	before.Diff(after, func(path string, _, now *view.Key) {
		fmt.Println(path, now == nil)
	})
	fmt.Println(before.Len(), after.Len())
	// Output:
	// color false
	// size true
	// 2 1
}
