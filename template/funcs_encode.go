package template

import (
	"crypto/hmac"
	"crypto/md5" //nolint:gosec // The function md5sum is for cache keys, not for security.
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
)

// encodeFunctions encode, decode and hash texts.
func encodeFunctions() map[string]any {
	return map[string]any{
		"base64Encode":    func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) },
		"base64Decode":    func(s string) (string, error) { return decode64(base64.StdEncoding, s) },
		"base64URLEncode": func(s string) string { return base64.URLEncoding.EncodeToString([]byte(s)) },
		"base64URLDecode": func(s string) (string, error) { return decode64(base64.URLEncoding, s) },
		"sha256Hex":       sha256Hex,
		"md5sum":          md5sum,
		"hmacSHA256Hex":   hmacSHA256Hex,
	}
}

func decode64(enc *base64.Encoding, s string) (string, error) {
	b, err := enc.DecodeString(s)
	if err != nil {
		return "", &inputError{s, "value is not base64"}
	}
	return string(b), nil
}

func sha256Hex(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// md5sum is for cache keys and old file formats, not for security.
func md5sum(s string) string {
	sum := md5.Sum([]byte(s)) //nolint:gosec // See above.
	return hex.EncodeToString(sum[:])
}

func hmacSHA256Hex(message, key string) string {
	h := hmac.New(sha256.New, []byte(key))
	h.Write([]byte(message))
	return hex.EncodeToString(h.Sum(nil))
}
