package jute

// RequestHeader begins every request after the handshake.
type RequestHeader struct {
	Xid int32 // chosen by the client; comes back in the reply
	Op  int32 // an Op constant
}

// ReplyHeader begins every reply and every notification.
type ReplyHeader struct {
	Xid  int32 // the request's xid, or XidNotification
	Zxid int64 // the server's last transaction; -1 in a notification
	Err  int32 // an ErrCode constant
}

// ReplyHeaderSize is the number of bytes that an encoded ReplyHeader takes.
const ReplyHeaderSize = 16

// MultiHeader stands before each operation and each result of a multi, and
// after the last one with Type -1 and Done set.
type MultiHeader struct {
	Type int32 // the operation; OpError for a failed one
	Done bool  // nothing follows
	Err  int32 // in requests -1
}

// ConnectRequest is the first packet of a connection.
type ConnectRequest struct {
	ProtocolVersion int32
	LastZxidSeen    int64  // a server that is behind it refuses the connection
	Timeout         int32  // wanted session timeout in milliseconds
	SessionID       int64  // 0 asks for a new session
	Password        []byte // 16 bytes
	ReadOnly        *bool  // old clients leave it out
}

// ConnectResponse answers a ConnectRequest. Timeout 0 and SessionID 0 mean that
// the session is gone.
type ConnectResponse struct {
	ProtocolVersion int32
	Timeout         int32 // granted session timeout in milliseconds
	SessionID       int64
	Password        []byte // 16 bytes
	ReadOnly        *bool  // as in the request
}

// WatcherEvent is the body of a notification.
type WatcherEvent struct {
	Type  int32 // an Event constant
	State int32 // a State constant
	Path  string
}

// Stat is what ZooKeeper knows about a znode besides its data. Zxids count the
// server's transactions; times are milliseconds since 1970.
type Stat struct {
	Czxid          int64 // zxid of the creation
	Mzxid          int64 // zxid of the last change of the data
	Ctime          int64 // time of the creation
	Mtime          int64 // time of the last change of the data
	Version        int32 // changes of the data
	Cversion       int32 // creations and deletions of children
	Aversion       int32 // changes of the ACL
	EphemeralOwner int64 // session that owns the znode; 0 if it is not ephemeral
	DataLength     int32 // bytes of data
	NumChildren    int32 // direct children
	Pzxid          int64 // zxid of the last creation or deletion of a child
}

// StatSize is the number of bytes that an encoded Stat takes.
const StatSize = 68

// ACL grants permissions on one znode to one identity.
type ACL struct {
	Perms  int32  // a sum of Perm constants
	Scheme string // "world", "auth", "digest", "ip", "x509", ...
	ID     string // who, in the words of the scheme
}
