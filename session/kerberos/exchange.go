package kerberos

import (
	"encoding/asn1"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/jcmturner/gokrb5/v8/asn1tools"
	"github.com/jcmturner/gokrb5/v8/crypto"
	"github.com/jcmturner/gokrb5/v8/gssapi"
	"github.com/jcmturner/gokrb5/v8/iana/chksumtype"
	"github.com/jcmturner/gokrb5/v8/iana/flags"
	"github.com/jcmturner/gokrb5/v8/iana/keyusage"
	"github.com/jcmturner/gokrb5/v8/messages"
	"github.com/jcmturner/gokrb5/v8/types"

	"github.com/zkagent/zkagent/session"
)

var mechanism = asn1.ObjectIdentifier(gssapi.OIDKRB5.OID())

// Kinds of tokens (RFC 4121, 4.1).
const (
	apReq    = "\x01\x00"
	apRep    = "\x02\x00"
	krbError = "\x03\x00"
)

// noProtection is the security layer that ZooKeeper uses: none (RFC 4752, 3.1).
const noProtection = 1

// exchange is the client's side: AP-REQ, AP-REP, then the choice of a security
// layer in two wrap tokens.
type exchange struct {
	*ticket
	auth types.Authenticator
	step int
}

// Step implements session.SASLExchange.
func (x *exchange) Step(challenge []byte) ([]byte, bool, error) {
	x.step++
	switch x.step {
	case 1:
		token, err := x.request()
		return token, false, err
	case 2:
		return []byte{}, false, x.verify(challenge)
	case 3:
		token, err := x.choose(challenge)
		return token, true, err
	}
	return nil, false, errors.New("kerberos: the exchange is over")
}

// request is the initial token: an AP-REQ that asks for mutual authentication
// (RFC 4121, 4.1).
func (x *exchange) request() ([]byte, error) {
	var err error
	if x.auth, err = types.NewAuthenticator(x.realm, x.cname); err != nil {
		return nil, fmt.Errorf("authenticator: %w", err)
	}
	sum := make([]byte, 24) // no channel binding
	binary.LittleEndian.PutUint32(sum, 16)
	binary.LittleEndian.PutUint32(sum[20:], gssapi.ContextFlagMutual|gssapi.ContextFlagInteg)
	x.auth.Cksum = types.Checksum{CksumType: chksumtype.GSSAPI, Checksum: sum}
	req, err := messages.NewAPReq(x.ticket.ticket, x.key, x.auth)
	if err != nil {
		return nil, fmt.Errorf("AP-REQ: %w", err)
	}
	types.SetFlag(&req.APOptions, flags.APOptionMutualRequired)
	body, err := req.Marshal()
	if err != nil {
		return nil, fmt.Errorf("AP-REQ: %w", err)
	}
	oid, err := asn1.Marshal(mechanism)
	if err != nil {
		return nil, err
	}
	return asn1tools.AddASNAppTag(append(append(oid, apReq...), body...), 0), nil
}

// unpack takes the frame of the mechanism off a token (RFC 2743, 3.1).
func unpack(token []byte) (kind string, body []byte, err error) { //nolint:nonamedreturns // says which is which
	var oid asn1.ObjectIdentifier
	rest, err := asn1.UnmarshalWithParams(token, &oid, "application,explicit,tag:0")
	switch {
	case err != nil:
		return "", nil, err
	case !oid.Equal(mechanism):
		return "", nil, fmt.Errorf("it is of mechanism %s, not of Kerberos", oid)
	case len(rest) < 2:
		return "", nil, errors.New("it is too short")
	}
	return string(rest[:2]), rest[2:], nil
}

// verify checks that the server could read the authenticator.
func (x *exchange) verify(token []byte) error {
	kind, body, err := unpack(token)
	if err != nil {
		return fmt.Errorf("the server's answer: %w", err)
	}
	switch kind {
	case krbError:
		var refused messages.KRBError
		if err := refused.Unmarshal(body); err != nil {
			return fmt.Errorf("the server's answer: %w", err)
		}
		return fmt.Errorf("%w: %w", session.ErrAuthFailed, refused)
	case apRep:
	default:
		return fmt.Errorf("the server's answer is of kind %x, not an AP-REP", kind)
	}
	var rep messages.APRep
	if err := rep.Unmarshal(body); err != nil {
		return fmt.Errorf("the server's answer: %w", err)
	}
	plain, err := crypto.DecryptEncPart(rep.EncPart, x.key, keyusage.AP_REP_ENCPART)
	if err != nil {
		return fmt.Errorf("the server did not prove its identity: %w", err)
	}
	var part messages.EncAPRepPart
	if err := part.Unmarshal(plain); err != nil {
		return fmt.Errorf("the server's answer: %w", err)
	}
	if part.CTime.Unix() != x.auth.CTime.Unix() || part.Cusec != x.auth.Cusec {
		return errors.New("the server did not prove its identity: its answer is to another request")
	}
	if part.Subkey.KeyType != 0 {
		x.key = part.Subkey
	}
	return nil
}

// choose answers the offer of security layers with none.
func (x *exchange) choose(token []byte) ([]byte, error) {
	var offer gssapi.WrapToken
	if err := offer.Unmarshal(token, true); err != nil {
		return nil, fmt.Errorf("the server's offer: %w", err)
	}
	if ok, err := offer.Verify(x.key, keyusage.GSSAPI_ACCEPTOR_SEAL); !ok {
		return nil, fmt.Errorf("the server's offer: %w", err)
	}
	if len(offer.Payload) != 4 {
		return nil, fmt.Errorf("the server's offer has %d bytes, not 4", len(offer.Payload))
	}
	if offer.Payload[0]&noProtection == 0 {
		return nil, errors.New("the server insists on a security layer; only the quality of protection \"auth\" is supported")
	}
	answer := gssapi.WrapToken{Payload: []byte{noProtection, 0, 0, 0}, SndSeqNum: uint64(x.auth.SeqNumber)}
	if offer.Flags&acceptorSubkey != 0 {
		answer.Flags = acceptorSubkey
	}
	etype, err := crypto.GetEtype(x.key.KeyType)
	if err != nil {
		return nil, err
	}
	answer.EC = uint16(etype.GetHMACBitLength() / 8)
	if err := answer.SetCheckSum(x.key, keyusage.GSSAPI_INITIATOR_SEAL); err != nil {
		return nil, err
	}
	return answer.Marshal()
}

// acceptorSubkey is the flag of a token that the acceptor's subkey protects.
const acceptorSubkey = 4
