# Translated by zkagent import from a file.
# import: telemetry has no counterpart here
template "a" {
  # note: this one stays
  contents    = <<-EOT
    # import: a comment of the file itself stays
    {{ range fail "import: there is no function node: range node" }}x{{ end }}
  EOT
  destination = "/etc/a"
}
