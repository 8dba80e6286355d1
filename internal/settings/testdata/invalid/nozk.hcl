group "g" { path = "/g" }
