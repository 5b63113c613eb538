"""Serves a bucket by moto, which checks the signatures of all requests once the bucket is there.

Prints a line "endpoint" with the URL, a line "key" for each key, with its name, secret, and session token if there is one,
and "ready". moto prints lines too.
"""

import json
import os
import sys

# Requests that are not checked: those that make the user, the role, their keys and the object.
os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "8"
os.environ.update(AWS_ACCESS_KEY_ID="setup", AWS_SECRET_ACCESS_KEY="setup", AWS_DEFAULT_REGION="eu-west-3")
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"

import boto3  # noqa: E402
from moto.server import ThreadedMotoServer  # noqa: E402

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
server.start()
endpoint = "http://%s:%s" % server.get_host_and_port()


def client(name):
    return boto3.client(name, endpoint_url=endpoint)


policy = json.dumps(
    {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
)
iam, s3 = client("iam"), client("s3")
with open(sys.argv[1], "rb") as file:
    contents = file.read()
iam.create_user(UserName="reader")
iam.put_user_policy(UserName="reader", PolicyName="all", PolicyDocument=policy)
key = iam.create_access_key(UserName="reader")["AccessKey"]
trust = policy.replace('"Resource": "*"', '"Principal": {"AWS": "*"}')
role = iam.create_role(RoleName="role", AssumeRolePolicyDocument=trust)["Role"]
iam.put_role_policy(RoleName="role", PolicyName="all", PolicyDocument=policy)
session = client("sts").assume_role(RoleArn=role["Arn"], RoleSessionName="test")["Credentials"]
s3.create_bucket(Bucket="images", CreateBucketConfiguration={"LocationConstraint": "eu-west-3"})
s3.put_object(Bucket="images", Key="apps/app-1.0_x.erofs", Body=contents)
print("endpoint", endpoint)
print("key", key["AccessKeyId"], key["SecretAccessKey"])
print("key", session["AccessKeyId"], session["SecretAccessKey"], session["SessionToken"])
print("ready", flush=True)
sys.stdin.read()
