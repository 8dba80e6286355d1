package jute

// Operations.
const (
	OpNotification         int32 = 0
	OpCreate               int32 = 1
	OpDelete               int32 = 2
	OpExists               int32 = 3
	OpGetData              int32 = 4
	OpSetData              int32 = 5
	OpGetACL               int32 = 6
	OpSetACL               int32 = 7
	OpGetChildren          int32 = 8
	OpSync                 int32 = 9
	OpPing                 int32 = 11
	OpGetChildren2         int32 = 12
	OpCheck                int32 = 13 // only inside a multi
	OpMulti                int32 = 14
	OpCreate2              int32 = 15
	OpReconfig             int32 = 16
	OpCheckWatches         int32 = 17
	OpRemoveWatches        int32 = 18
	OpCreateContainer      int32 = 19
	OpDeleteContainer      int32 = 20 // internal to servers
	OpCreateTTL            int32 = 21
	OpMultiRead            int32 = 22
	OpAuth                 int32 = 100
	OpSetWatches           int32 = 101
	OpSASL                 int32 = 102
	OpGetEphemerals        int32 = 103
	OpGetAllChildrenNumber int32 = 104
	OpSetWatches2          int32 = 105
	OpAddWatch             int32 = 106
	OpWhoAmI               int32 = 107
	OpCreateSession        int32 = -10 // the handshake, as servers name it
	OpClose                int32 = -11
	OpError                int32 = -1 // in results of a multi
)

// Xids with a meaning of their own.
const (
	XidNotification int32 = -1
	XidPing         int32 = -2
	XidAuth         int32 = -4
	XidSetWatches   int32 = -8
)

// Error codes of replies.
const (
	ErrCodeOK                        int32 = 0
	ErrCodeSystemError               int32 = -1
	ErrCodeRuntimeInconsistency      int32 = -2
	ErrCodeMarshallingError          int32 = -5
	ErrCodeUnimplemented             int32 = -6
	ErrCodeBadArguments              int32 = -8
	ErrCodeNewConfigNoQuorum         int32 = -13
	ErrCodeReconfigInProgress        int32 = -14
	ErrCodeNoNode                    int32 = -101
	ErrCodeNoAuth                    int32 = -102
	ErrCodeBadVersion                int32 = -103
	ErrCodeNoChildrenForEphemerals   int32 = -108
	ErrCodeNodeExists                int32 = -110
	ErrCodeNotEmpty                  int32 = -111
	ErrCodeSessionExpired            int32 = -112
	ErrCodeInvalidACL                int32 = -114
	ErrCodeAuthFailed                int32 = -115
	ErrCodeSessionMoved              int32 = -118
	ErrCodeNotReadOnly               int32 = -119
	ErrCodeNoWatcher                 int32 = -121
	ErrCodeReconfigDisabled          int32 = -123
	ErrCodeSessionClosedRequiresAuth int32 = -124
	ErrCodeQuotaExceeded             int32 = -125
	ErrCodeThrottled                 int32 = -127
)

// Types of watch events.
const (
	EventNone            int32 = -1
	EventCreated         int32 = 1
	EventDeleted         int32 = 2
	EventDataChanged     int32 = 3
	EventChildrenChanged int32 = 4
)

// StateSyncConnected is the state in watch events.
const StateSyncConnected int32 = 3

// Permissions of an ACL.
const (
	PermRead   int32 = 1
	PermWrite  int32 = 2
	PermCreate int32 = 4
	PermDelete int32 = 8
	PermAdmin  int32 = 16
	PermAll    int32 = 31
)

// Flags of create requests.
const (
	FlagPersistent              int32 = 0
	FlagEphemeral               int32 = 1
	FlagSequential              int32 = 2
	FlagEphemeralSequential     int32 = 3
	FlagContainer               int32 = 4
	FlagPersistentTTL           int32 = 5
	FlagPersistentSequentialTTL int32 = 6
)

// Modes of addWatch.
const (
	AddWatchPersistent          int32 = 0
	AddWatchPersistentRecursive int32 = 1
)

// Types of watchers in checkWatches and removeWatches.
const (
	WatcherChildren            int32 = 1
	WatcherData                int32 = 2
	WatcherAny                 int32 = 3
	WatcherPersistent          int32 = 4
	WatcherPersistentRecursive int32 = 5
)

// OpName returns the name of an operation as ZooKeeper writes it, "unknown" for
// all others.
func OpName(op int32) string {
	if name, ok := opNames[op]; ok {
		return name
	}
	return "unknown"
}

var opNames = map[int32]string{
	OpCreate: "create", OpDelete: "delete", OpExists: "exists", OpGetData: "getData", OpSetData: "setData",
	OpGetACL: "getACL", OpSetACL: "setACL", OpGetChildren: "getChildren", OpSync: "sync", OpPing: "ping",
	OpGetChildren2: "getChildren2", OpCheck: "check", OpMulti: "multi", OpCreate2: "create2", OpReconfig: "reconfig",
	OpCheckWatches: "checkWatches", OpRemoveWatches: "removeWatches", OpCreateContainer: "createContainer",
	OpDeleteContainer: "deleteContainer", OpCreateTTL: "createTTL", OpMultiRead: "multiRead", OpAuth: "auth",
	OpSetWatches: "setWatches", OpSASL: "sasl", OpGetEphemerals: "getEphemerals",
	OpGetAllChildrenNumber: "getAllChildrenNumber", OpSetWatches2: "setWatches2", OpAddWatch: "addWatch",
	OpWhoAmI: "whoAmI", OpCreateSession: "createSession", OpClose: "closeSession",
}

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
