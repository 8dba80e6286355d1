package proc

import (
	"os"
	"slices"
	"strings"
)

// defaultPath is used when this process has no PATH of its own.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// CleanEnv is the environment of a command: PATH, HOME and LANG of this
// process, then the given variables. Nothing else is passed on: no
// NOTIFY_SOCKET, no credentials directory, no secrets.
func CleanEnv(extra []string) []string {
	path := os.Getenv("PATH")
	if path == "" {
		path = defaultPath
	}
	home := os.Getenv("HOME")
	if home == "" {
		home = "/"
	}
	lang := os.Getenv("LANG")
	if lang == "" {
		lang = "C.UTF-8"
	}
	return append([]string{"PATH=" + path, "HOME=" + home, "LANG=" + lang}, extra...)
}

// codeVariables make a program run code, or trust another party: loaders, shells
// and interpreters read them. A * stands for any ending.
var codeVariables = []string{
	"LD_*", "DYLD_*", "GCONV_PATH", "GLIBC_TUNABLES", "LOCPATH", "NLSPATH", "HOSTALIASES", "MALLOC_*",
	"PATH", "IFS", "ENV", "BASH_ENV", "BASH_FUNC_*", "BASHOPTS", "SHELLOPTS", "PS4", "PROMPT_COMMAND", "CDPATH", "FPATH", "ZDOTDIR", "SHELL", "HOME",
	"EDITOR", "VISUAL", "PAGER", "MANPAGER", "LESSOPEN", "LESSCLOSE", "BROWSER", "TERMINFO*", "TERMCAP",
	"GIT_*", "SSH_*", "PYTHON*", "PERL*", "RUBY*", "GEM_*", "BUNDLE_*", "NODE_*", "NPM_*", "npm_*", "LUA_*", "PHP_INI*", "PHPRC", "R_*",
	"JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_*", "CLASSPATH", "DOTNET_*", "CORECLR_*", "COR_*", "AWKPATH", "AWKLIBPATH",
	"MAKEFLAGS", "GOFLAGS", "GODEBUG", "OPENSSL_*", "SSL_CERT_*", "SSLKEYLOGFILE", "KRB5*", "CURL_HOME", "WGETRC", "XDG_*", "SYSTEMD_*", "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET",
}

// RunsCode reports whether a variable can make a program run the code of whoever
// sets it.
func RunsCode(name string) bool {
	return slices.ContainsFunc(codeVariables, func(v string) bool {
		prefix, wild := strings.CutSuffix(v, "*")
		return name == v || wild && strings.HasPrefix(name, prefix)
	})
}
