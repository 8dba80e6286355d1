package web

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// maxSocketPath is how long the path of a unix socket may be.
const maxSocketPath = 107

// adminSocket opens the unix socket: one left over by a dead process is
// removed, one that answers is not.
func adminSocket(ctx context.Context, path string) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("admin socket %s: the path has %d bytes, at most %d are possible", path, len(path), maxSocketPath)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("admin socket %s: a file that is not a socket is in the way", path)
		}
		var d net.Dialer
		dial, cancel := context.WithTimeout(ctx, time.Second)
		conn, err := d.DialContext(dial, "unix", path)
		cancel()
		if err == nil {
			_ = conn.Close()
			return nil, fmt.Errorf("admin socket %s: another agent is listening", path)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("admin socket %s: %w", path, err)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("admin socket: %w", err)
		}
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	if u, ok := ln.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	if err := os.Chmod(path, 0o660); err != nil { //nolint:gosec // the group may give orders.
		return nil, errors.Join(fmt.Errorf("admin socket: %w", err), ln.Close())
	}
	return ln, nil
}

// peerKey is the key of the peer of a connection.
type peerKey struct{}

// peerID is the process at the other end of a unix socket.
type peerID struct {
	uid uint32
	pid int32
}

// String returns the peer for the log.
func (p peerID) String() string { return fmt.Sprintf("uid %d pid %d", p.uid, p.pid) }

// name returns the user of the peer.
func (p peerID) name() string {
	u, err := user.LookupId(strconv.FormatUint(uint64(p.uid), 10))
	if err != nil {
		return fmt.Sprintf("uid %d", p.uid)
	}
	return u.Username
}

// withPeer notes who is at the other end of the socket.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return ctx
	}
	var id peerID
	known := false
	_ = raw.Control(func(fd uintptr) {
		id, known = peerOf(int(fd))
	})
	if !known {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, id)
}

// peer returns who is at the other end of the admin socket, if the system tells.
func peer(ctx context.Context) (peerID, bool) {
	id, ok := ctx.Value(peerKey{}).(peerID)
	return id, ok
}

// wildcard reports whether an address to listen on is every address.
func wildcard(host string) bool {
	if host == "" || host == "*" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsUnspecified()
}
