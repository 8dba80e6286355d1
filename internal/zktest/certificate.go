package zktest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"slices"
	"testing"
	"time"
)

// Certificate makes a certificate that signs itself, for localhost by name and for
// no address, and writes it to a file with its key, and to FILE.cert.pem without.
// It returns the pair, and a pool that trusts it.
func Certificate(tb testing.TB, file, name string) (tls.Certificate, *x509.CertPool) {
	tb.Helper()
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	must(err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	must(err)
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	private := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	must(os.WriteFile(file, slices.Concat(private, cert), 0o600))
	must(os.WriteFile(file+".cert.pem", cert, 0o600))
	pair, err := tls.X509KeyPair(cert, private)
	must(err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cert)
	return pair, pool
}
