#!/bin/sh
# Makes the databases when PostgreSQL first starts: Prefect's, and the one with the store's pointers and names.
set -e
for name in prefect names; do
  case $name in prefect) password=$PREFECT_DATABASE_PASSWORD ;; names) password=$NAMES_PASSWORD ;; esac
  psql --quiet --set=ON_ERROR_STOP=1 --username=postgres --dbname=postgres <<END
CREATE ROLE $name LOGIN PASSWORD '$password';
CREATE DATABASE $name OWNER $name;
REVOKE ALL ON DATABASE $name FROM PUBLIC;
END
done
