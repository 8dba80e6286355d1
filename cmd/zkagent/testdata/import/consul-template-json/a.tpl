{{ define "srv" }}server {{ .Address }}:{{ .Port }};{{ end }}
upstream u { {{ range service "api" "passing" }}{{ template "srv" . }}{{ end }} }
{{ $m := key "a/json" | parseJSON }}{{ range $k, $v := $m.list }}{{ $k }}={{ $v }}
{{ end }}{{ if keyExists "a/flag" }}on{{ else if eq (key "a/x") "1" }}one{{ else }}off{{ end }}
{{ scratch.Set "n" 1 }}{{ scratch.Get "n" | add 1 }}
{{ file "/etc/hostname" }}{{ mustEnv "HOME" }}
{{ executeTemplate "srv" (index (service "api") 0) }}
{{ range $tag, $services := service "web" | byTag }}{{ $tag }}{{ range $services }} {{ .Address }}{{ end }}{{ end }}
{{ pkiCert "pki/issue/x" "common_name=x" }}
