package jute

// RequestHeader begins every request after the handshake.
type RequestHeader struct {
	Xid int32 // chosen by the client; comes back in the reply
	Op  int32 // an Op constant
}

// Encode appends h to e.
func (h *RequestHeader) Encode(e *Encoder) {
	e.Int32(h.Xid)
	e.Int32(h.Op)
}

// Decode reads h from d; the error is d's.
func (h *RequestHeader) Decode(d *Decoder) {
	h.Xid = d.Int32()
	h.Op = d.Int32()
}

// ReplyHeader begins every reply and every notification.
type ReplyHeader struct {
	Xid  int32 // the request's xid, or XidNotification
	Zxid int64 // the server's last transaction; -1 in a notification
	Err  int32 // an ErrCode constant
}

// ReplyHeaderSize is the number of bytes that an encoded ReplyHeader takes.
const ReplyHeaderSize = 16

// Encode appends h to e.
func (h *ReplyHeader) Encode(e *Encoder) {
	e.Int32(h.Xid)
	e.Int64(h.Zxid)
	e.Int32(h.Err)
}

// Decode reads h from d; the error is d's.
func (h *ReplyHeader) Decode(d *Decoder) {
	h.Xid = d.Int32()
	h.Zxid = d.Int64()
	h.Err = d.Int32()
}

// MultiHeader stands before each operation and each result of a multi, and
// after the last one with Type -1 and Done set.
type MultiHeader struct {
	Type int32 // the operation; OpError for a failed one
	Done bool  // nothing follows
	Err  int32 // in requests -1
}

// Encode appends h to e.
func (h *MultiHeader) Encode(e *Encoder) {
	e.Int32(h.Type)
	e.Bool(h.Done)
	e.Int32(h.Err)
}

// Decode reads h from d; the error is d's.
func (h *MultiHeader) Decode(d *Decoder) {
	h.Type = d.Int32()
	h.Done = d.Bool()
	h.Err = d.Int32()
}

// ConnectRequest is the first packet of a connection.
type ConnectRequest struct {
	ProtocolVersion int32
	LastZxidSeen    int64  // a server that is behind it refuses the connection
	Timeout         int32  // wanted session timeout in milliseconds
	SessionID       int64  // 0 asks for a new session
	Password        []byte // 16 bytes
	ReadOnly        bool
	HasReadOnly     bool // the packet has the last byte; old clients leave it out
}

// Encode appends r to e, with the last byte only if HasReadOnly is set.
func (r *ConnectRequest) Encode(e *Encoder) {
	e.Int32(r.ProtocolVersion)
	e.Int64(r.LastZxidSeen)
	e.Int32(r.Timeout)
	e.Int64(r.SessionID)
	e.Buffer(r.Password)
	if r.HasReadOnly {
		e.Bool(r.ReadOnly)
	}
}

// Decode reads r from d; the error is d's.
func (r *ConnectRequest) Decode(d *Decoder) {
	r.ProtocolVersion = d.Int32()
	r.LastZxidSeen = d.Int64()
	r.Timeout = d.Int32()
	r.SessionID = d.Int64()
	r.Password = d.Buffer()
	r.HasReadOnly = d.Len() > 0
	r.ReadOnly = r.HasReadOnly && d.Bool()
}

// ConnectResponse answers a ConnectRequest. Timeout 0 and SessionID 0 mean that
// the session is gone.
type ConnectResponse struct {
	ProtocolVersion int32
	Timeout         int32 // granted session timeout in milliseconds
	SessionID       int64
	Password        []byte // 16 bytes
	ReadOnly        bool
	HasReadOnly     bool // the packet has the last byte
}

// Encode appends r to e, with the last byte only if HasReadOnly is set.
func (r *ConnectResponse) Encode(e *Encoder) {
	e.Int32(r.ProtocolVersion)
	e.Int32(r.Timeout)
	e.Int64(r.SessionID)
	e.Buffer(r.Password)
	if r.HasReadOnly {
		e.Bool(r.ReadOnly)
	}
}

// Decode reads r from d; the error is d's.
func (r *ConnectResponse) Decode(d *Decoder) {
	r.ProtocolVersion = d.Int32()
	r.Timeout = d.Int32()
	r.SessionID = d.Int64()
	r.Password = d.Buffer()
	r.HasReadOnly = d.Len() > 0
	r.ReadOnly = r.HasReadOnly && d.Bool()
}

// WatcherEvent is the body of a notification.
type WatcherEvent struct {
	Type  int32 // an Event constant
	State int32 // a State constant
	Path  string
}

// Encode appends v to e.
func (v *WatcherEvent) Encode(e *Encoder) {
	e.Int32(v.Type)
	e.Int32(v.State)
	e.String(v.Path)
}

// Decode reads v from d; the error is d's.
func (v *WatcherEvent) Decode(d *Decoder) {
	v.Type = d.Int32()
	v.State = d.Int32()
	v.Path = d.String()
}
