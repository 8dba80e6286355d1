package zktest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zkagent/zkagent/internal/zktest/testhelp"
)

// Realm is the Kerberos realm of a [KDC].
const Realm = "ZKTEST.INTERNAL"

// KDC is a Kerberos key distribution centre (MIT's) on loopback, with a database
// and a realm of its own.
type KDC struct {
	dir  string
	env  []string
	port *reservation
	proc *process
}

// StartKDC starts one that ends with the test. It skips a quick run.
func StartKDC(tb testing.TB) *KDC {
	tb.Helper()
	testhelp.OnlyAll(tb, "it starts a Kerberos server")
	k := &KDC{dir: tb.TempDir(), port: reserve(tb)}
	tb.Cleanup(func() { k.port.release() })
	k.write(tb, "krb5.conf", fmt.Sprintf(`[libdefaults]
  default_realm = %[1]s
  dns_lookup_kdc = false
  dns_lookup_realm = false
  rdns = false
  udp_preference_limit = 1
[realms]
  %[1]s = {
    kdc = 127.0.0.1:%[2]d
  }
[domain_realm]
  localhost = %[1]s
`, Realm, k.port.port))
	k.write(tb, "kdc.conf", fmt.Sprintf(`[kdcdefaults]
  kdc_listen = 127.0.0.1:%[2]d
  kdc_tcp_listen = 127.0.0.1:%[2]d
[realms]
  %[1]s = {
    database_name = %[3]s/principal
    key_stash_file = %[3]s/stash
    max_life = 10h
    supported_enctypes = aes256-cts-hmac-sha1-96:normal aes128-cts-hmac-sha1-96:normal
  }
`, Realm, k.port.port, k.dir))
	k.env = append(os.Environ(), "KRB5_CONFIG="+k.Conf(), "KRB5_KDC_PROFILE="+filepath.Join(k.dir, "kdc.conf"))
	k.run(tb, "kdb5_util", "create", "-s", "-P", "master", "-r", Realm)
	k.Start(tb)
	tb.Cleanup(func() { k.Stop() })
	return k
}

func (k *KDC) write(tb testing.TB, name, text string) {
	tb.Helper()
	if err := os.WriteFile(filepath.Join(k.dir, name), []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
}

// Conf is the path of a krb5.conf that names the KDC.
func (k *KDC) Conf() string { return filepath.Join(k.dir, "krb5.conf") }

// Start starts the KDC, also after Stop, and waits until it answers.
func (k *KDC) Start(tb testing.TB) {
	tb.Helper()
	cmd := exec.Command(program(tb, "krb5kdc"), "-n", "-r", Realm) //nolint:gosec,noctx // its life is the KDC's
	cmd.Env = k.env
	var err error
	if k.proc, err = startProcess(cmd, filepath.Join(k.dir, "kdc.log")); err != nil {
		tb.Fatalf("zktest: start the KDC: %v", err)
	}
	deadline := time.Now().Add(startLimit)
	dialer := net.Dialer{Timeout: time.Second}
	for {
		conn, err := dialer.DialContext(tb.Context(), "tcp", loopback(k.port.port))
		if err == nil {
			_ = conn.Close()
			return
		}
		if k.proc.ended() || time.Now().After(deadline) {
			log, _ := os.ReadFile(filepath.Join(k.dir, "kdc.log"))
			tb.Fatalf("zktest: the KDC does not answer: %v\n%s", err, log)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Stop stops the KDC.
func (k *KDC) Stop() {
	if k.proc != nil {
		k.proc.stop(stopGrace)
		k.proc = nil
	}
}

// Principal makes a principal, or gives one a new key, and returns the path of
// its key table. Options are kadmin's, such as "-maxlife 30sec".
func (k *KDC) Principal(tb testing.TB, name string, options ...string) string {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "keytab")
	k.run(tb, "kadmin.local", "-r", Realm, "-q", strings.Join(append(append([]string{"addprinc", "-randkey"}, options...), name), " "))
	k.run(tb, "kadmin.local", "-r", Realm, "-q", "ktadd -k "+file+" "+name)
	return file
}

// Cache gets a ticket-granting ticket with a key table, as kinit does, and
// returns the path of the credential cache.
func (k *KDC) Cache(tb testing.TB, principal, keytab string) string {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "cache")
	k.run(tb, "kinit", "-c", file, "-k", "-t", keytab, principal)
	return file
}

// ServerOptions are options of a ZooKeeper server whose principal is
// zookeeper/host, with the key table of that principal.
func (k *KDC) ServerOptions(tb testing.TB, host string, o Options) Options {
	tb.Helper()
	principal := "zookeeper/" + host
	section := fmt.Sprintf(`Server {
  com.sun.security.auth.module.Krb5LoginModule required
  useKeyTab=true storeKey=true useTicketCache=false
  keyTab=%q principal="%s@%s";
};
`, k.Principal(tb, principal), principal, Realm)
	o = WithSASL(tb, o, section)
	o.JVMFlags = append(o.JVMFlags, "-Djava.security.krb5.conf="+k.Conf())
	return o
}

func (k *KDC) run(tb testing.TB, name string, args ...string) {
	tb.Helper()
	cmd := exec.Command(program(tb, name), args...) //nolint:gosec,noctx // a moment
	cmd.Env = k.env
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("zktest: %s %v: %v\n%s", name, args, err, out)
	}
}

// program finds a program also where only root looks.
func program(tb testing.TB, name string) string {
	tb.Helper()
	for _, path := range []string{name, "/usr/sbin/" + name} {
		if found, err := exec.LookPath(path); err == nil {
			return found
		}
	}
	tb.Fatalf("zktest: %s is missing; run: scripts/setup-tests", name)
	return ""
}
