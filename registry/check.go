package registry

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/zkagent/zkagent/internal/files"
)

// maxOutput bounds the stored output of a check, in bytes.
const maxOutput = 4 << 10

// Check finds out whether a service works. Run returns nil if it works, and in both
// cases an output to show. It returns soon after ctx ends. Calls do not overlap.
type Check interface {
	Run(ctx context.Context) (output string, err error)
}

// NewCheck makes the check that c describes. It does no I/O. Checks of kind ttl
// have no Check, because the service reports their results. run runs the commands
// of exec checks; nil means a plain runner.
func NewCheck(c CheckConfig, run RunFunc) (Check, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	switch c.Kind {
	case CheckHTTP:
		return newHTTPCheck(c), nil
	case CheckTCP:
		return tcpCheck{address: c.Address}, nil
	case CheckGRPC:
		return newGRPCCheck(c), nil
	case CheckPrometheus:
		return newPrometheusCheck(c), nil
	case CheckExec:
		if run == nil {
			run = plainRun
		}
		return execCheck{args: c.Command, run: run}, nil
	}
	return nil, fmt.Errorf("checks of kind %q do not run", c.Kind)
}

// clip bounds output and makes it printable text.
func clip(s string) string {
	s = strings.ToValidUTF8(strings.TrimSpace(s), "?")
	if len(s) > maxOutput {
		s = strings.ToValidUTF8(s[:maxOutput], "") + "..."
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			return -1
		}
		return r
	}, s)
}

type tcpCheck struct{ address string }

func (c tcpCheck) Run(ctx context.Context) (string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", c.address)
	if err != nil {
		return "", fmt.Errorf("connect: %w", err)
	}
	_ = conn.Close()
	return "connected to " + c.address, nil
}

// execCheck runs a command. Only exit code 0 is good; code 1, the "warning" of
// monitoring plugins, is not.
type execCheck struct {
	args []string
	run  RunFunc
}

func (c execCheck) Run(ctx context.Context) (string, error) {
	output, code, err := c.run(ctx, c.args, maxOutput)
	switch {
	case ctx.Err() != nil:
		return output, fmt.Errorf("command %s: not done in time", c.args[0])
	case err != nil:
		return output, fmt.Errorf("run %s: %w", c.args[0], err)
	case code != 0:
		return output, &exitError{c.args[0], code}
	}
	return output, nil
}

type exitError struct {
	program string
	code    int
}

func (e *exitError) Error() string {
	return fmt.Sprintf("command %s: exit status %d", e.program, e.code)
}

// plainRun is the default runner. It starts the command in its own process group
// and kills the whole group at the end.
func plainRun(ctx context.Context, args []string, limit int) (string, int, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...) // #nosec G204 -- the command is from the settings
	out := &head{limit: limit}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // the command ended with 0, but a child of it keeps the output open
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(out.data), exit.ExitCode(), nil
	}
	return string(out.data), 0, err
}

// head keeps the first limit bytes. It needs no lock: os/exec copies both streams
// to the same writer in one goroutine.
type head struct {
	data  []byte
	limit int
}

func (h *head) Write(p []byte) (int, error) {
	h.data = append(h.data, p[:min(len(p), h.limit-len(h.data))]...)
	return len(p), nil
}

// Kinds of checks.
const (
	CheckHTTP = "http"
	CheckTCP  = "tcp"
	CheckGRPC = "grpc"
	CheckExec = "exec"
	CheckTTL  = "ttl"
	// CheckPrometheus is for bake checks, which look at more than one instance.
	CheckPrometheus = "prometheus"
)

// Defaults of checks.
const (
	DefaultInterval = 2 * time.Second
	DefaultTimeout  = time.Second
	DefaultRise     = 2
	DefaultFall     = 3
	// DefaultJitter is the largest random shift of a run, as a share of the
	// interval.
	DefaultJitter = 0.1
)

// CheckConfig describes one health check of a service.
type CheckConfig struct {
	Kind string // http (also for https URLs), tcp, grpc, exec, ttl or prometheus
	Name string // unique within the service; empty: the kind

	URL     string            // http, prometheus (of the server)
	Method  string            // http; empty: GET
	Headers map[string]string // http; Host sets the host
	Status  string            // http: "200-399" (default), or such as "200,204,300-308"
	Body    string            // http: regular expression that the body (first 64 kB) must match
	Follow  bool              // http: follow redirects instead of judging them

	Query    string   // prometheus: its figures are compared with Min and Max
	Min, Max *float64 // prometheus: limits of each figure; nil: none

	Address string // tcp, grpc: host:port
	Service string // grpc: name of the service that is asked for; empty: the whole server

	TLS *TLSConfig // http, grpc, prometheus: nil: plain for grpc, system roots for https

	Command []string      // exec
	TTL     time.Duration // ttl: how long a report is valid

	Interval time.Duration // default 2 s
	Timeout  time.Duration // of one run; default 1 s
	Rise     int           // successes in a row until passing; default 2 (ttl: 1)
	Fall     int           // failures in a row until critical; default 3 (ttl: 1)
	// Jitter is the largest random shift of each run, as a share of the interval,
	// 0..1; 0: 0.1, negative: no jitter.
	Jitter float64
}

// TLSConfig has the TLS options of a check. Its files are read for each new
// connection, so they can be replaced at any time.
type TLSConfig struct {
	CAFile     string // empty: system roots
	CertFile   string // PEM, presented to the service; empty: none
	KeyFile    string // PEM
	ServerName string // name that the certificate must have; empty: the host
	Insecure   bool   // do not verify the server
}

func (c CheckConfig) name() string { return cmp.Or(c.Name, c.Kind) }

var checkName = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,64}$`)

// Validate returns everything that is wrong with the check.
func (c CheckConfig) Validate() error {
	var errs []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(!checkName.MatchString(c.name()), "name %q: only letters, digits and ._:- are allowed, at most 64", c.name())
	refuse(c.Interval < 0 || c.Timeout < 0 || c.TTL < 0 || c.Rise < 0 || c.Fall < 0, "negative durations and counts have no meaning")
	switch c.Kind {
	case CheckHTTP, CheckPrometheus:
		u, err := url.Parse(c.URL)
		refuse(err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https", "url %q is not an http or https URL", c.URL)
		_, err = parseStatuses(c.Status)
		refuse(err != nil, "%w", err)
		_, err = regexp.Compile(c.Body)
		refuse(err != nil, "body: %w", err)
		refuse(c.Kind == CheckPrometheus && (c.Query == "" || c.Min == nil && c.Max == nil), "a query and a limit are needed")
	case CheckTCP, CheckGRPC:
		host, port, err := net.SplitHostPort(c.Address)
		split := err == nil && host != ""
		refuse(!split, "address %q is not host:port", c.Address)
		_, err = parsePort(port)
		refuse(split && err != nil, "address %q: %w", c.Address, err)
	case CheckExec:
		refuse(len(c.Command) == 0 || c.Command[0] == "", "command is empty")
	case CheckTTL:
		refuse(c.TTL <= 0, "ttl is missing")
	default:
		refuse(true, "kind %q is not one of http, tcp, grpc, exec, ttl, prometheus", c.Kind)
	}
	return errors.Join(errs...)
}

// statusRange is a range of HTTP statuses, both ends included.
type statusRange struct{ from, to int }

// parseStatuses reads "200,204,300-308"; empty means 200-399.
func parseStatuses(s string) ([]statusRange, error) {
	var ranges []statusRange
	for part := range strings.SplitSeq(cmp.Or(s, "200-399"), ",") {
		from, to, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			to = from
		}
		a, errA := strconv.Atoi(strings.TrimSpace(from))
		b, errB := strconv.Atoi(strings.TrimSpace(to))
		if errA != nil || errB != nil || a < 100 || b > 599 || a > b {
			return nil, fmt.Errorf("status %q is not a set such as 200,204,300-308", s)
		}
		ranges = append(ranges, statusRange{a, b})
	}
	return ranges, nil
}

// Client returns the TLS configuration of one connection; nil means without files. The
// files are read each time, so renewed certificates are used.
func (t *TLSConfig) Client() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if t == nil {
		return c, nil
	}
	c.ServerName = t.ServerName
	c.InsecureSkipVerify = t.Insecure
	if t.CAFile != "" {
		pem, err := files.ReadNamed(t.CAFile, 1<<20)
		if err != nil {
			return nil, fmt.Errorf("read ca_file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read ca_file %s: it holds no certificate", t.CAFile)
		}
	}
	if t.CertFile != "" {
		chain, err := files.ReadNamed(t.CertFile, 1<<20)
		key, keyErr := files.ReadNamed(t.KeyFile, 1<<20)
		if err = errors.Join(err, keyErr); err != nil {
			return nil, fmt.Errorf("read certificate: %w", err)
		}
		cert, err := tls.X509KeyPair(chain, key)
		if err != nil {
			return nil, fmt.Errorf("read certificate: %w", err)
		}
		c.Certificates = []tls.Certificate{cert}
	}
	return c, nil
}
