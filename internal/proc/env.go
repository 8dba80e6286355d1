package proc

import (
	"cmp"
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
	return append([]string{
		"PATH=" + cmp.Or(os.Getenv("PATH"), defaultPath), "HOME=" + cmp.Or(os.Getenv("HOME"), "/"), "LANG=" + cmp.Or(os.Getenv("LANG"), "C.UTF-8"),
	}, extra...)
}

// codeVariables make a program run code, or trust another party: loaders, shells
// and interpreters read them. A * stands for any ending.
var codeVariables = []string{
	"LD_*", "DYLD_*", "GCONV_PATH", "GLIBC_TUNABLES", "LOCPATH", "NLSPATH", "HOSTALIASES", "RES_OPTIONS", "LOCALDOMAIN", "MALLOC_*", "TZDIR",
	"PATH", "IFS", "ENV", "BASH*", "SHELLOPTS", "PS0", "PS1", "PS2", "PS4", "PROMPT_COMMAND", "CDPATH", "FPATH", "ZDOTDIR", "SHELL", "HOME", "HISTFILE", "INPUTRC",
	"EDITOR", "VISUAL", "FCEDIT", "PAGER", "MANPAGER", "LESS*", "BROWSER", "TERMINFO*", "TERMCAP", "VIM*", "EXINIT", "EMACS*", "SUDO_*", "TAR_OPTIONS", "GREP_OPTIONS",
	"GIT_*", "SSH_*", "RSYNC_*", "CVS_*", "SVN_*", "HGRCPATH", "HGMERGE",
	"PYTHON*", "PIP_*", "VIRTUAL_ENV", "PERL*", "RUBY*", "GEM_*", "BUNDLE_*", "NODE_*", "NPM_*", "npm_*", "LUA_*", "PHP_INI*", "PHPRC", "R_*", "TCL*", "ERL_*",
	"JAVA_*", "_JAVA_*", "JDK_*", "JVM*", "CLIENT_JVMFLAGS", "SERVER_JVMFLAGS", "CLASSPATH", "MAVEN_*", "GRADLE_*", "CATALINA_*", "DOTNET_*", "CORECLR_*", "COR_*", "AWKPATH", "AWKLIBPATH",
	"MAKEFLAGS", "MAKEFILES", "GOFLAGS", "GODEBUG", "GOENV", "GOROOT", "GOPATH", "GOPROXY", "GOTOOLCHAIN", "CARGO_*", "RUSTC*", "RUSTUP_*",
	"OPENSSL_*", "SSL_CERT_*", "SSLKEYLOGFILE", "KRB5*", "CURL_*", "WGETRC", "NETRC", "GNUPGHOME", "KUBECONFIG", "DOCKER_*", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "ANSIBLE_*",
	"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy",
	"XDG_*", "SYSTEMD_*", "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "ZKAGENT_*",
}

// RunsCode reports whether a variable can make a program run code that its writer
// chose.
func RunsCode(name string) bool {
	return slices.ContainsFunc(codeVariables, func(v string) bool {
		prefix, wild := strings.CutSuffix(v, "*")
		return name == v || wild && strings.HasPrefix(name, prefix)
	})
}
