package e2e

import (
	"bufio"
	"bytes"
	endian "encoding/binary"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/godbus/dbus/v5"
)

const (
	unitName = "zkagent.service"
	unitPath = dbus.ObjectPath("/org/freedesktop/systemd1/unit/zkagent_2eservice")
)

// systemBus is a system bus with a service manager on it that has one job for
// the unit of every process that asks. It returns the bus's address.
func systemBus(t *testing.T, job string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "b")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	serveConns(t, l, func(conn net.Conn) { serveBus(conn, job) })
	return "unix:path=" + path
}

// serveConns serves each connection of a listener until the test ends.
func serveConns(t *testing.T, l net.Listener, serve func(net.Conn)) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
}

// serveBus lets one client in and answers its calls until it hangs up.
func serveBus(conn net.Conn, job string) {
	in := bufio.NewReader(conn)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		answer := "ERROR\r\n"
		switch line = strings.TrimLeft(strings.TrimSpace(line), "\x00"); {
		case line == "AUTH":
			answer = "REJECTED EXTERNAL\r\n"
		case strings.HasPrefix(line, "AUTH EXTERNAL"), strings.HasPrefix(line, "DATA"):
			answer = "OK 0123456789abcdef0123456789abcdef\r\n"
		case line == "BEGIN":
			serveCalls(conn, in, job)
			return
		}
		if _, err := conn.Write([]byte(answer)); err != nil {
			return
		}
	}
}

// jobRow is a row of ListJobs.
type jobRow struct {
	ID       uint32
	Unit     string
	Type     string
	State    string
	JobPath  dbus.ObjectPath
	UnitPath dbus.ObjectPath
}

func serveCalls(conn net.Conn, in *bufio.Reader, job string) {
	for serial := uint32(1); ; serial++ {
		call, err := dbus.DecodeMessage(in)
		if err != nil {
			return
		}
		if call.Type != dbus.TypeMethodCall {
			continue
		}
		var body any
		member, _ := call.Headers[dbus.FieldMember].Value().(string)
		switch member {
		case "Hello":
			body = ":1.1"
		case "GetUnitByPID":
			body = unitPath
		case "ListJobs":
			body = []jobRow{
				{1, "other.service", "start", "running", "/org/freedesktop/systemd1/job/1", "/org/freedesktop/systemd1/unit/other_2eservice"},
				{2, unitName, job, "running", "/org/freedesktop/systemd1/job/2", unitPath},
			}
		}
		reply := &dbus.Message{
			Type: dbus.TypeMethodReply,
			Headers: map[dbus.HeaderField]dbus.Variant{
				dbus.FieldReplySerial: dbus.MakeVariant(call.Serial()),
				dbus.FieldSender:      dbus.MakeVariant("org.freedesktop.DBus"),
			},
		}
		if body != nil {
			reply.Body = []any{body}
			reply.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(body))
		}
		if err := encode(conn, reply, serial); err != nil {
			return
		}
	}
}

// encode writes a message with its serial number, which the library sets only
// for connections of its own: bytes 8 to 11.
func encode(conn net.Conn, m *dbus.Message, serial uint32) error {
	var buf bytes.Buffer
	if err := m.EncodeTo(&buf, endian.LittleEndian); err != nil {
		return err
	}
	endian.LittleEndian.PutUint32(buf.Bytes()[8:], serial)
	_, err := conn.Write(buf.Bytes())
	return err
}
