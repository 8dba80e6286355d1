module github.com/zkagent/zkagent

go 1.26
