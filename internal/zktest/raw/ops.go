package raw

import "github.com/zkagent/zkagent/internal/jute"

// OpenACL lets everybody do everything.
var OpenACL = []jute.ACL{{Perms: jute.PermAll, Scheme: "world", ID: "anyone"}}

// Body encodes the body of a request: strings, byte slices, booleans, 32-bit and
// 64-bit integers, slices of strings, and ACLs, in the order given. Anything
// else panics, because the request is written down in a test.
func Body(fields ...any) []byte {
	e := jute.NewEncoder(nil)
	for _, f := range fields {
		switch v := f.(type) {
		case string:
			e.String(v)
		case []byte:
			e.Buffer(v)
		case nil:
			e.Buffer(nil)
		case bool:
			e.Bool(v)
		case int32:
			e.Int32(v)
		case int:
			e.Count(v)
		case int64:
			e.Int64(v)
		case []string, []jute.ACL:
			e.Put(v)
		default:
			panic("raw.Body: field of unknown type")
		}
	}
	return e.Bytes()
}

// Create creates a znode that everybody may use and returns the reply's code.
func (c *Conn) Create(path string, data []byte, flags int32) (int32, error) {
	r, err := c.Call(jute.OpCreate, Body(path, data, OpenACL, flags))
	return r.Err, err
}

// Delete deletes a znode and returns the reply's code.
func (c *Conn) Delete(path string, version int32) (int32, error) {
	r, err := c.Call(jute.OpDelete, Body(path, version))
	return r.Err, err
}

// Set sets the data of a znode and returns its Stat and the reply's code.
func (c *Conn) Set(path string, data []byte, version int32) (jute.Stat, int32, error) {
	r, err := c.Call(jute.OpSetData, Body(path, data, version))
	var st jute.Stat
	_ = jute.NewDecoder(r.Body).Get(&st)
	return st, r.Err, err
}

// Get returns the data and the Stat of a znode, and the reply's code.
func (c *Conn) Get(path string, watch bool) ([]byte, jute.Stat, int32, error) {
	r, err := c.Call(jute.OpGetData, Body(path, watch))
	d := jute.NewDecoder(r.Body)
	data := d.Buffer()
	var st jute.Stat
	_ = d.Get(&st)
	return data, st, r.Err, err
}
